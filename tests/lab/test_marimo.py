"""A mesh in a marimo notebook, served by marimo and seen in a browser."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import PATIENCE_MS

import monarch_nb

pytest.importorskip("marimo", reason="needs marimo: pip install marimo")

NOTEBOOK = """
import marimo

app = marimo.App()


@app.cell
def _():
    import monarch_nb
    mesh = monarch_nb.start("in-marimo", {"gpus": 2}, attach=True)
    mesh
    return (mesh,)


@app.cell
def _(mesh):
    mesh.run("x = 70 + rank")
    found = mesh.pull("x")
    found
    return (found,)


@app.cell
def _(mesh, found):
    try:
        mesh.run("1 / (rank - 1)")
    except Exception as error:
        said = str(error)
    said
    return


if __name__ == "__main__":
    app.run()
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Where marimo shows the notebook; the server and the mesh end with the test."""
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["run", "notebook.py", "--headless", "--host", "127.0.0.1", "--port", str(port), "--no-token"]
    server = subprocess.Popen(
        [sys.executable, "-m", "marimo", *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert server.stdout is not None
    said = iter(server.stdout.readline, "")
    assert any(str(port) in line for line in said), "the server has ended"
    yield f"http://127.0.0.1:{port}"
    server.send_signal(signal.SIGINT)
    server.communicate(timeout=PATIENCE_MS / 1000)
    # As from any notebook: the mesh outlives the program that started it.
    mesh = monarch_nb.attach("in-marimo")
    assert list(mesh.pull("x").values()) == [70, 71]
    mesh.stop().get()


def test_a_mesh_its_values_and_its_errors(address: str, browser: Any, pictures: Path) -> None:
    page = browser.new_context(viewport={"width": 1000, "height": 900}).new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(address)
    page.get_by_text("gpus=2").first.wait_for()
    page.get_by_text("in-marimo").first.wait_for()
    table = page.locator("table", has_text="70")
    table.get_by_text("71").wait_for()
    page.get_by_text("rank 1: ZeroDivisionError").first.wait_for()
    page.screenshot(path=pictures / "marimo.png")
    page.context.close()
