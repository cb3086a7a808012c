"""What `pip install` gives from a built wheel, in an environment of its own, without node: package, server
extension, labextension, kernelspec; in Notebook 7, whose users have no sidebar in front of them, the card is
live.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import CHROMIUM, Lab, Page

ROOT = Path(__file__).parents[2]
PLAIN_PATH = "/usr/bin:/bin"
CELLS = [
    "%load_ext monarch_nb\n%mesh start wheeled --gpus 2\nmesh",
    "%%mesh\nimport time\ntime.sleep(600)",
    "%mesh stop wheeled",
]

pytestmark = pytest.mark.timeout(400)


def run(*command: str | Path) -> str:
    environment = {**os.environ, "PATH": PLAIN_PATH}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    (found,) = folder.glob("monarch_nb-*.whl")
    return found


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; returns its bin."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    run(sys.executable, ROOT / "tests" / "install.py", "--python", python, f"{wheel}[notebook]")
    return folder / "bin"


def test_the_wheel_has_it_all_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    data = [n.partition(".data/data/")[2] for n in names if ".data/data/" in n]
    assert "etc/jupyter/jupyter_server_config.d/monarch_nb.json" in data
    assert "share/jupyter/kernels/python3-mesh/kernel.json" in data
    assert "share/jupyter/labextensions/monarch-nb/package.json" in data
    assert any(n.startswith("share/jupyter/labextensions/monarch-nb/static/remoteEntry.") for n in data)
    assert "monarch_nb/_widgets/static/card.js" in names
    assert not [
        n
        for n in names
        if "node_modules" in n or n.startswith(("tests", "labextension/src")) or n.endswith(".map")
    ]


def test_jupyter_finds_everything(clean: Path) -> None:
    assert "monarch-nb v0.1.0" in run(clean / "jupyter", "labextension", "list")
    listed = run(clean / "jupyter", "server", "extension", "list")
    assert "monarch_nb" in listed and "OK" in listed
    kernels = json.loads(run(clean / "jupyter", "kernelspec", "list", "--json"))["kernelspecs"]
    assert kernels["python3-mesh"]["spec"]["display_name"] == "Python 3 (mesh)"
    assert "no mesh runs" in run(clean / "monarch-nb", "list")


@pytest.fixture(scope="module")
def notebook7(clean: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if not CHROMIUM:
        pytest.skip("needs chromium: apt-get install chromium")
    opened = Lab(
        tmp_path_factory.mktemp("notebook7"),
        str(clean / "python"),
        app="notebooks",
        path=f"{clean}:{PLAIN_PATH}",
    )
    yield opened
    opened.close()


def test_the_card_is_live_in_notebook_7(notebook7: Lab, browser: Any, pictures: Path) -> None:
    page = Page(browser, notebook7, CELLS, "wheeled.ipynb")
    page.run(0)
    card = page.page.locator(".jp-OutputArea .mnb-card")
    card.get_by_role("button", name="Interrupt").wait_for()  # there are buttons: it's live, not a picture
    page.start(1)
    page.page.wait_for_function("document.querySelectorAll('.jp-OutputArea .mnb-cell.mnb-busy').length === 2")
    page.picture(pictures / "notebook7.png")
    card.get_by_role("button", name="Interrupt").click()
    page.page.wait_for_function("document.querySelectorAll('.jp-OutputArea .mnb-cell.mnb-idle').length === 2")
    page.wait_for(1, "ranks 0-1 were interrupted")
    assert "has ended" in page.run(2)
    assert page.strangers == []


def test_the_menu_of_notebook_7_restarts_the_kernel_and_the_cell_goes_on(
    notebook7: Lab, browser: Any, pictures: Path
) -> None:
    gate = notebook7.root / "go"
    source = (
        f"%%mesh\nimport os, time\nprint('st' 'ep 1')\nwhile not os.path.exists({str(gate)!r}): "
        "time.sleep(0.01)\nrank * 100"
    )
    start, attach = (
        "%load_ext monarch_nb\n%mesh start restarted7 --procs 2",
        "%load_ext monarch_nb\n%mesh attach restarted7",
    )
    page = Page(browser, notebook7, [start, source, attach, "%mesh stop"], "restarted7.ipynb")
    assert "is ready" in page.run(0)
    page.start(1)
    page.wait_for(1, "step 1")
    page.page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.page.locator('.lm-Menu-item[data-command="kernelmenu:restart"]').click()
    page.page.locator(".jp-Dialog button.jp-mod-warn").click()
    page.wait_for(1, "goes on in mesh")
    page.start(2)
    page.wait_for(2, "step 1")
    gate.touch()
    page.wait_for(2, "[1] 100")
    page.picture(pictures / "notebook7_restarted.png")
    assert "has ended" in page.run(3)
