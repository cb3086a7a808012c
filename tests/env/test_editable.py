"""Editable installs with an extension module, by backends that build at install or at import: what was built
runs where project, environment and build tools are hidden.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from environments import Made, bare, make_native_project, make_venv, needs

from monarch_nb._sync.env.cache import HashCache
from monarch_nb._sync.env.interpreter import interpreter_of
from monarch_nb._sync.env.layers import find_layers
from monarch_nb._sync.env.local import export
from monarch_nb._sync.env.meson_loader import PLAN, modules
from monarch_nb._sync.env.scan import scan

PROGRAM = "import mine, mine.native as n; print(mine.__file__, n.__file__, n.answer(), mine.WHO)"
TOOLS = {"scikit_build_core": ("cc", "cmake"), "mesonpy": ("cc", "ninja")}


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find build tools that are packages of the tests' own Python."""
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}")


def made_by(backend: str, folder: Path) -> tuple[Made, Path]:
    """Return an environment with an editable install, and its project."""
    pytest.importorskip(backend, reason=f"{backend} isn't installed here")
    if lacking := needs(*TOOLS[backend]):
        pytest.skip(f"{lacking}: not there")
    made, project = make_venv(folder / "venv"), folder / "project"
    make_native_project(project, backend)
    made.install(project, editable=True, needs=(backend,))
    return made, project


def run_without(python: str, *hidden: Path) -> str:
    """Run the program where folders are empty; skip the test where that isn't allowed."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here: run as root")
    mounts = "; ".join(f"mount -t tmpfs none '{folder}'" for folder in hidden)
    command = ["unshare", "-m", "sh", "-c", f'{mounts}; PATH= exec "$@"', "sh", python, "-c", PROGRAM]
    ended = subprocess.run(command, capture_output=True, text=True, env=bare())
    assert not ended.returncode, ended.stderr
    return ended.stdout


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("backend", ["scikit_build_core", "mesonpy"])
def test_what_was_built_runs_where_the_project_is_hidden(backend: str, tmp_path: Path) -> None:
    made, project = made_by(backend, tmp_path)
    assert made.run(PROGRAM).endswith(" 42 mine")
    cache_file = str(tmp_path / "cache.sqlite")
    scanned = made.scan(cache_file)
    assert scanned.left_out == ()
    prefix = export(str(tmp_path / "store"), scanned, ["mine", "mine.native"])
    file, extension, answer, who = run_without(prefix.python, made.prefix, project).split()
    assert file.startswith(prefix.root) and extension.startswith(prefix.root)
    assert (answer, who) == ("42", "mine")
    (project / "src" / "mine" / "__init__.py").write_text("WHO = 'edited'\n")
    assert made.scan(cache_file).manifest.id != scanned.manifest.id


@pytest.mark.usefixtures("tools")
def test_mesons_loader_goes_as_what_was_built_and_is_named_if_nothing_was(tmp_path: Path) -> None:
    made, project = made_by("mesonpy", tmp_path)
    loader = made.site / "_mine_editable_loader.py"
    native = next(project.glob("build/*/native.*.so"))
    found = {"mine": str(project / "src" / "mine" / "__init__.py"), "mine.native": str(native)}
    assert modules(loader.read_text()) == found
    cache_file = str(tmp_path / "cache.sqlite")
    before = made.scan(cache_file)
    plan = native.parent / PLAN
    plan.write_text(plan.read_text().replace("/mine/native.", "/mine/other."))
    changed = {part.name for part in made.scan(cache_file).parts.values() if part.id not in before.parts}
    assert "mine" in changed, "its loader is another one, by the build's plan"
    shutil.rmtree(native.parent)
    layers = find_layers(interpreter_of(made.python))
    assert [path for path, _ in layers.uncovered] == [str(loader)]
    assert "install it again, or without -e" in layers.uncovered[0][1]
    assert scan(layers, HashCache(cache_file)).left_out == layers.uncovered
