"""An environment that ranks can run in: this package, installed editable, and what it needs, without
torch. Linked, so that it takes no room.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from environments import Made, bare, make_venv

ROOT = Path(__file__).parents[2]
NEEDED = ("pyzmq", "cloudpickle", "ipython", "psutil", "numpy", "msgspec", "pathspec", "jupyter_core", "rich")
_EXTRA = re.compile(r"extra\s*==")


def make_runtime(prefix: Path) -> Made:
    """Make a venv with what ranks need. Its files are links to those of the tests' own environment."""
    return add_runtime(make_venv(prefix))


def add_runtime(made: Made) -> Made:
    """Give an environment what ranks need."""
    seen: set[str] = set()
    for name in NEEDED:
        _link(name, made.site, seen)
    write_editable(made.site)
    return made


def run_in_runtime(folder: Path, program: Path, *arguments: str) -> dict[str, Any]:
    """Run a program in an environment made for it, with a store and journals of its own; return what its last
    line says, as JSON.
    """
    runtime = make_runtime(folder / "venv")
    (folder / "work").mkdir()
    env = {
        **bare(),
        "MONARCH_NB_STORE": str(folder / "store"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "run"),
    }
    return result_of([runtime.python, str(program), *arguments], env, folder / "work", 290)


def result_of(command: list[str], env: dict[str, str], folder: Path, timeout_s: float) -> dict[str, Any]:
    """Run a program in a folder; return what its last line says, as JSON."""
    ended = subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder, timeout=timeout_s)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def write_editable(site: Path) -> None:
    """Install this package as an editable install does that is done by hand."""
    info = site / "monarch_nb-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: monarch_nb\nVersion: 0.1.0\n")
    (info / "INSTALLER").write_text("tests\n")
    (info / "direct_url.json").write_text(f'{{"dir_info": {{"editable": true}}, "url": "file://{ROOT}"}}')
    (site / "_editable_impl_monarch_nb.pth").write_text(f"{ROOT}\n")
    (info / "RECORD").write_text(
        "monarch_nb-0.1.0.dist-info/METADATA,,\n_editable_impl_monarch_nb.pth,,\n"
        "monarch_nb-0.1.0.dist-info/direct_url.json,,\n"
    )


def _link_file(file: Path, target: Path) -> None:
    """Link a file, and its byte code, which a package's record needn't name."""
    for source, place in ((file, target), (_byte_code_of(file), _byte_code_of(target))):
        if source.exists() and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(source, place)


def _byte_code_of(file: Path) -> Path:
    return Path(cache_from_source(file)) if file.suffix == ".py" else file


def _link(name: str, site: Path, seen: set[str]) -> None:
    found = metadata.distribution(name)
    if found.metadata["Name"] in seen:
        return
    seen.add(found.metadata["Name"])
    for file in found.files or ():
        if ".." not in file.parts:
            _link_file(Path(found.locate_file(file)), site / file)
    for requirement in found.requires or ():
        if not _EXTRA.search(requirement):
            required = re.match(r"[\w.-]+", requirement)
            assert required is not None
            try:
                _link(required.group(), site, seen)
            except metadata.PackageNotFoundError:  # of another platform, or another Python
                assert ";" in requirement, (requirement, sys.version)
