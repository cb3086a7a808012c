"""ipyparallel's names on a mesh of ours: views, and `%px` where it was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from own_meshes import own_mesh

from monarch_nb.compat import Client
from monarch_nb.exceptions import ActorError, MeshUsageError
from monarch_nb.mesh import Mesh


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with own_mesh("compat", {"gpus": 3}) as found:
        yield found


@pytest.fixture(autouse=True, scope="module")
def _without_a_spare() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONARCH_NB_PREWARM", "0")
        yield


@pytest.fixture(scope="module")
def shell(mesh: Mesh) -> Iterator[Any]:
    found = InteractiveShell()
    found.run_line_magic("load_ext", "monarch_nb.compat")
    found.run_line_magic("mesh", "attach compat")
    yield found
    found.run_line_magic("unload_ext", "monarch_nb.compat")
    found.run_line_magic("unload_ext", "monarch_nb")


def add(x: int, y: int) -> int:
    return x + y


def fail(x: int) -> int:
    raise ValueError(f"no {x}")


def test_views_call_and_map(mesh: Mesh) -> None:
    rc = Client(mesh)
    assert rc.ids == [0, 1, 2] and len(rc[:2]) == 2
    assert rc[:].apply_sync(add, 1, y=2) == [3, 3, 3]
    later = rc[[0, 2]].apply_async(add, 1, 1)
    assert later.get(60) == [2, 2] and later.ready()
    assert rc.load_balanced_view().map_sync(add, range(5), range(5)) == [0, 2, 4, 6, 8]
    assert rc[-1].map(abs, [-1, -2]).get() == [1, 2]
    with pytest.raises(ActorError, match="no 1"):
        rc[:].apply_sync(fail, 1)


def test_views_have_variables(mesh: Mesh) -> None:
    rc = Client("compat")
    rc[:].push({"a": 1})
    rc[0]["a"] = 5
    rc[1:].execute("a = a + 1")
    assert rc[:]["a"] == [5, 2, 2]
    rc[:].scatter("part", list(range(7)))
    assert rc[:].gather("part") == list(range(7))
    assert rc[::2].pull(["a", "part"]) == [[5, [0, 1, 2]], [2, [5, 6]]]


@pytest.mark.parametrize(
    ("key", "error"), [(3, IndexError), ([0, 9], IndexError), (slice(3, 3), MeshUsageError)]
)
def test_ranks_that_are_not_there_are_said(mesh: Mesh, key: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="mesh 'compat' has"):
        Client(mesh)[key]


def test_px_is_the_mesh_magic(mesh: Mesh, shell: Any) -> None:
    shell.run_line_magic("px", "x = 1")
    shell.run_cell_magic("px", "--targets 1,2 --local", "x = 7")
    assert list(mesh.pull("x").values()) == [1, 7, 7] and shell.user_ns["x"] == 7
    with pytest.raises(UsageError, match="unrecognized arguments: --wrong"):
        shell.run_cell_magic("px", "--wrong", "x = 1")


def test_autopx_goes_on_and_off(mesh: Mesh, shell: Any) -> None:
    shell.run_line_magic("autopx", "")
    shell.run_cell("y = 3")
    shell.run_line_magic("autopx", "")
    shell.run_cell("y = 4")
    assert list(mesh.pull("y").values()) == [3, 3, 3] and shell.user_ns["y"] == 4


def test_nobody_has_px_who_did_not_ask(mesh: Mesh) -> None:
    plain = InteractiveShell()
    plain.run_line_magic("load_ext", "monarch_nb")
    assert plain.find_line_magic("px") is None and plain.find_line_magic("mesh") is not None
    plain.run_line_magic("load_ext", "monarch_nb.compat")
    assert plain.find_line_magic("px") is not None
    plain.run_line_magic("unload_ext", "monarch_nb.compat")
    assert plain.find_line_magic("px") is None and plain.find_cell_magic("px") is None
    plain.run_line_magic("unload_ext", "monarch_nb")
