"""Edit a module, run the next cell: the notebook and its ranks have the new code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import RawKernel

SOURCE = """
from monarch_nb.actor import Actor, endpoint

class Greeter(Actor):
    def __init__(self):
        self.num = 0

    @endpoint
    def greet(self):
        self.num += 1
        return f"one {self.num}"

def word():
    return "one"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("project")


@pytest.fixture(scope="module")
def kernel(folder: Path) -> Iterator[RawKernel]:
    opened = RawKernel()
    opened.run(f"import sys; sys.path.insert(0, {str(folder)!r})\n%load_ext monarch_nb")
    assert "is ready" in opened.show("%mesh start edited --dims gpus=2")
    yield opened
    assert "has ended" in opened.show("%mesh stop edited")
    opened.close()


@pytest.fixture
def module(kernel: RawKernel, folder: Path, request: pytest.FixtureRequest) -> Path:
    path = folder / f"m_{request.node.name}.py"
    path.write_text(SOURCE)
    kernel.run(f"import {path.stem} as code")
    kernel.run(f"%%mesh\nimport sys; sys.path.insert(0, {str(folder)!r})\nimport {path.stem} as code")
    kernel.show("%mesh set sync warn")
    return path


def edit(path: Path, before: str, after: str) -> None:
    path.write_text(path.read_text().replace(before, after))


def test_said_then_synced(kernel: RawKernel, module: Path) -> None:
    edit(module, "one", "two")
    output = kernel.show("%%mesh\ncode.word()")
    assert (
        f"{module.name} has changed since this rank loaded it" in output
        and "%mesh sync" in output
        and "'one'" in output
    )
    dry = kernel.show("%mesh sync --dry-run").splitlines()
    assert dry == [f"{who} {module.name}: would change Greeter, word" for who in ("[0-1]", "[here]")]
    done = kernel.show("%mesh sync").splitlines()
    assert done == [
        f"{who} reloaded {module.name} (class Greeter, function word)" for who in ("[0-1]", "[here]")
    ]
    assert kernel.show("%%mesh\ncode.word()") == "[0-1] 'two'" and kernel.show("code.word()") == "'two'"
    assert kernel.show("%mesh sync").startswith("nothing to reload: all ranks run what the files hold (")


def test_watched(kernel: RawKernel, module: Path) -> None:
    assert "before each cell and call from now on" in kernel.show("%mesh sync --watch")
    kernel.run("greeter = mesh.spawn('greeter', code.Greeter)")
    assert kernel.show("greeter.greet.call().get().item(gpus=0)") == "'one 1'"
    edit(module, "one", "two")
    shown = kernel.show("greeter.greet.call().get().item(gpus=1), code.word()")
    assert (
        f"reloaded here: {module.name} (class Greeter, function word)" in shown
        and "('two 2', 'two')" in shown
    )
    edit(module, "two", "three")
    assert "reloaded" in kernel.show("%%mesh\ncode.word()")
    assert kernel.show("%%mesh\ncode.word()") == "[0-1] 'three'"
    edit(module, "def greet(self):", "def greet(self, name):")
    assert "missing a required argument: 'name'" in kernel.show("greeter.greet.call().get()")
    assert "sync" in kernel.show("%mesh set") and "watch" in kernel.show("%mesh set sync")
    assert "%mesh sync reloads it" in kernel.show("%mesh sync --stop")
    assert "warn" in kernel.show("%mesh set sync")


def test_a_syntax_error_is_shown_once_and_the_cell_does_not_run(kernel: RawKernel, module: Path) -> None:
    kernel.show("%mesh sync --watch")
    edit(module, "def word():", "def word(:")
    shown = kernel.show("%%mesh\nprint('it ran')")
    assert (
        "it ran" not in shown
        and shown.count("SyntaxError") <= 4
        and "%mesh set sync warn" in shown
        and module.name in shown
    )
    edit(module, "def word(:", "def word():")
    assert "it ran" in kernel.show("%%mesh\nprint('it ran')")


def test_wrong_arguments(kernel: RawKernel) -> None:
    assert "there is no 'nowhere.py'" in kernel.show("%mesh sync nowhere.py")
    both = kernel.show("%mesh sync --env --to box --from index")
    assert "--to 'box' is sent everything, and --from index is for hosts of a mesh" in both
    assert "expected warn|watch|strict|off, not 'sometimes'" in kernel.show("%mesh set sync sometimes")
