"""`%mesh doctor` in a real kernel, and `monarch-nb doctor` in a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from kernels import Notebook

NAME = "doctored"


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    opened = Notebook()
    opened.run("%load_ext monarch_nb")
    assert "is ready" in opened.text(f"%mesh start {NAME} --procs 2")
    yield opened
    assert "has ended" in opened.text("%mesh stop -f")
    opened.close()


def terminal(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "monarch_nb", *words], capture_output=True, text=True, check=False
    )


def test_a_quick_look(notebook: Notebook) -> None:
    output = notebook.run("%mesh doctor --quick")[-1]
    text = output.data["text/plain"]
    assert text.startswith(f"mesh '{NAME}': ranks 0-1 on 1 host")
    assert "locked memory" in text
    assert "small reads between ranks 0-1" in text
    assert "<table" in output.data["text/html"]


def test_ranks_and_size_are_chosen(notebook: Notebook) -> None:
    text = notebook.text("%mesh doctor --ranks 0,1 --size 256K --all")
    assert "reads of 256 KiB between ranks 0-1" in text
    assert "message" in text


def test_what_is_typed_wrongly(notebook: Notebook) -> None:
    assert "rank 9 is out of range" in notebook.text("%mesh doctor --ranks 9")
    assert "expected a size such as 64M" in notebook.text("%mesh doctor --size much")
    assert "4096" in notebook.text("%mesh doctor --size 1K")


def test_a_terminal(notebook: Notebook) -> None:
    ran = terminal("doctor", NAME, "--quick")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(f"mesh '{NAME}': ranks 0-1 on 1 host")
    found = json.loads(terminal("doctor", NAME, "--json", "--ranks", "0,1", "--size", "1M").stdout)
    assert any(m["path"] == "shm" and m["gb_per_s"] > 0 for m in found["measurements"])
    wrong = terminal("doctor", NAME, "--ranks", "9")
    assert wrong.returncode == 1
    assert "rank 9 is out of range" in wrong.stderr
