"""Whose code a frame is, whatever the folders are called that it lies in."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import cloudpickle
import IPython.core.interactiveshell
import pytest

from monarch_nb import _stacks
from monarch_nb._frames.owner import (
    Owner,
    frames_from,
    hidden_patterns,
    is_module_elsewhere,
    owner_elsewhere,
    owner_of,
    owner_of_file,
    users_index,
)
from monarch_nb._host.agent import dumped
from monarch_nb._rank import blocking, hang, memory, operations
from monarch_nb._runtime.inbox import Inbox
from monarch_nb.actor import future

CELL = "<ipython-input-5-0a1b2c>"
SOURCE = "import sys\n\ndef here(): return sys._getframe()\n\ndef through(function): return function()\n"
FOLDERS = [
    "monarch_nb/_rank",
    "monarch_nb/actor",
    "my_monarch_nb",
    "monarch_nb_tools/_transport",
    "site-packages-of-mine",
    "lib/python3/steps",
    "IPython/core",
    "old/site-packages/IPython",
]


def module_in(folder: Path, name: str = "of_the_user") -> Any:
    """Return a module with functions that show their frames, imported from a folder."""
    folder.mkdir(parents=True)
    (folder / f"{name}.py").write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def defined_in(file: str, **names: Any) -> dict[str, Any]:
    """Return the names of the source above, as code that is called `file` has defined them."""
    scope = {"__name__": "__main__", **names}
    exec(compile(SOURCE, file, "exec"), scope)
    return scope


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_file_of_the_user_is_theirs_whatever_its_folder_is_called(folder: str, tmp_path: Path) -> None:
    assert owner_of(module_in(tmp_path / folder).here()) is Owner.USER


def test_a_file_called_as_one_of_ours_is_the_users_where_it_runs(tmp_path: Path) -> None:
    module = module_in(tmp_path / "monarch_nb" / "actor", "future")
    assert owner_of(module.here()) is Owner.USER
    assert blocking._known(module.here()) == ""


def test_what_is_installed_is_a_librarys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_in(tmp_path / "site-packages" / "bought")
    assert (
        owner_of_file(cloudpickle.__file__)
        is owner_of_file(json.__file__)
        is owner_of_file("<frozen importlib._bootstrap>")
        is Owner.LIBRARY
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    assert owner_of(module.here()) is Owner.LIBRARY


def test_what_runs_cells_is_hidden_and_cells_are_the_users() -> None:
    assert owner_of_file(IPython.core.interactiveshell.__file__) is Owner.SHELL
    assert owner_of_file(future.__file__) is Owner.PACKAGE
    assert owner_of(defined_in(CELL)["here"]()) is Owner.USER
    assert owner_of_file(__file__) is Owner.USER


def test_the_line_that_runs_a_string_goes_before_the_string() -> None:
    executed, cell = defined_in("<string>"), defined_in(CELL)
    frames = frames_from(executed["through"](lambda: cell["through"](executed["here"])))
    of_both = [f for f in frames if f.f_code.co_filename in ("<string>", CELL)][
        :3
    ]  # what runs the tests may run strings, too
    assert [owner_of(f) for f in of_both] == [Owner.EXECUTED, Owner.USER, Owner.EXECUTED]
    assert users_index(of_both) == 1
    assert users_index([of_both[0], of_both[2]]) == 0, "code without a file is all there is"
    assert users_index([f for f in frames if owner_of(f) is Owner.LIBRARY]) is None


def test_the_innermost_line_counts_under_frames_of_ours() -> None:
    outer, inner = defined_in(CELL), defined_in("<ipython-input-6-77>")
    ours = frame_of_ours()
    frames = [ours, inner["here"](), ours, outer["here"]()]
    assert users_index(frames) == 1


def frame_of_ours() -> FrameType:
    """Return a frame of this package: one that has called back."""
    found: list[FrameType] = []

    def note(_: object) -> bool:
        found.append(sys._getframe(2))
        return False

    from monarch_nb._folding import fold

    fold(_Noting(note))
    return next(f for f in found if owner_of(f) is Owner.PACKAGE)


class _Noting:
    """Is iterated over by whom it notes."""

    def __init__(self, note: Callable[[object], bool]) -> None:
        self._note = note

    def __iter__(self) -> Any:
        self._note(self)
        return iter(())


@dataclass
class Made:
    """Its `__init__` is code from a string."""

    frame: FrameType = field(default_factory=lambda: sys._getframe(1))


def test_what_a_dataclass_makes_belongs_to_whoever_has_written_the_class() -> None:
    assert owner_of(Made().frame) is Owner.EXECUTED
    code = compile("def __init__(): return sys._getframe()", "<string>", "exec")
    for module, owner in (
        ("monarch_nb.exceptions", Owner.PACKAGE),
        ("json", Owner.LIBRARY),
        ("namedtuple_Point", Owner.LIBRARY),
        ("__main__", Owner.EXECUTED),
    ):
        scope: dict[str, Any] = {"__name__": module, "sys": sys}
        exec(code, scope)
        assert owner_of(scope["__init__"]()) is owner


def test_globals_of_the_users_run_no_code_of_theirs() -> None:
    class Hostile(dict):  # type: ignore[type-arg]
        def get(self, *_: object) -> object:
            raise AssertionError("asked")

    scope = Hostile(sys=sys)
    exec(compile(SOURCE, "<string>", "exec"), scope)
    assert owner_of(dict.__getitem__(scope, "here")()) is Owner.EXECUTED


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("/opt/venv/lib/python3.12/site-packages/monarch_nb/actor/future.py", Owner.PACKAGE),
        ("/x/monarch_nb/_transport/reader.py", Owner.PACKAGE),
        ("/home/me/monarch_nb/_train/step.py", Owner.USER),
        ("/home/me/monarch_nb_runs/train.py", Owner.USER),
        ("/home/me/my-site-packages/train.py", Owner.USER),
        ("/opt/venv/lib/python3.12/site-packages/IPython/core/async_helpers.py", Owner.SHELL),
        ("/opt/venv/lib/python3.12/site-packages/torch/autograd/graph.py", Owner.LIBRARY),
        ("/usr/lib/python3.12/threading.py", Owner.LIBRARY),
        (CELL, Owner.USER),
        ("<string>", Owner.EXECUTED),
    ],
)
def test_files_of_other_machines_are_known_by_how_they_end(file: str, owner: Owner) -> None:
    assert owner_elsewhere(file) is owner


def test_both_ways_agree_on_all_that_is_loaded_here() -> None:
    files = [m.__file__ for m in list(sys.modules.values()) if isinstance(getattr(m, "__file__", None), str)]
    assert len(files) > 300
    assert [f for f in files if f is not None and owner_of_file(f) is not owner_elsewhere(f)] == []


@pytest.mark.parametrize(
    "module",
    sorted({
        *(name for name, _, _ in blocking._KNOWN), hang._FUTURE, hang._ACTORS, dumped._ACTOR, dumped._READER,
        operations._DISTRIBUTED, operations._GRAPH,
    }),
)  # fmt: skip
def test_modules_that_are_known_by_name_exist(module: str) -> None:
    """A module that is renamed would be looked for in vain."""
    spec = importlib.util.find_spec(module.removesuffix("."))
    assert spec is not None and spec.origin is not None
    assert not module.startswith("monarch_nb.") or is_module_elsewhere(spec.origin, module)


def test_functions_that_are_known_by_name_exist() -> None:
    for name, functions, _ in blocking._KNOWN:
        if name.startswith("monarch_nb."):
            spec = importlib.util.find_spec(name)
            assert spec is not None and spec.origin is not None
            text = Path(spec.origin).read_text()
            assert all(f"def {function}(" in text for function in functions), name


def test_memory_of_ours_is_left_out_and_a_users_is_not(tmp_path: Path) -> None:
    from fnmatch import fnmatch

    def is_left_out(file: str) -> bool:
        return any(fnmatch(file, pattern) for pattern in hidden_patterns())

    assert (
        is_left_out(memory.__file__)
        and is_left_out(future.__file__)
        and is_left_out(IPython.core.interactiveshell.__file__)
    )
    assert not is_left_out(str(tmp_path / "monarch_nb" / "_train.py")) and not is_left_out(CELL)


def test_whoever_stands_in_the_function_that_takes_mail_is_idle() -> None:
    assert Inbox.take_message.__name__ == _stacks.WAITING
    waits = f'  File "/x/monarch_nb/_runtime/inbox.py", line 5, in {_stacks.WAITING}\n    wait()\n'
    assert _stacks.innermost({"stacks": {_stacks.MAIN: waits}}) == "is idle"
    works = '  File "/home/me/model.py", line 7, in step\n    loss()\n'
    assert "model.py, line 7" in _stacks.innermost({"stacks": {_stacks.MAIN: waits, "actor-a": works}})
