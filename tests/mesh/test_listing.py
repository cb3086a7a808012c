"""The list of meshes, and calls of a mesh with what makes no sense."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from own_meshes import own_mesh

from monarch_nb._tracebacks import BadType, is_hidden, render
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.mesh import Mesh
from monarch_nb.mesh.listing import list_rows


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with own_mesh("listed", {"gpus": 2}) as found:
        yield found


def test_a_mesh_whose_calls_are_over_is_not_busy(mesh: Mesh) -> None:
    mesh.status()
    for _ in range(3):
        mesh.run("1 + 1")
        mesh.execute(len, "abc").get(30)
        assert [row.state for row in list_rows() if row.name == "listed"] == ["ok"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda mesh: mesh.run_script(5), "expected a script's file, as in train.py, .*; not 5"),
        (lambda mesh: mesh.run_script("a.py", env=5), r"env takes variables by name, as in .*; not 5"),
        (lambda mesh: mesh.sync(5), "expected a file or folder of yours, as in 'model.py'; not 5"),
        (lambda mesh: mesh.sync(["model.py"]), r"expected a file or folder .*; not \['model.py'\]"),
        (lambda mesh: mesh.status(1), r"status\(\) takes 1 positional argument but 2 were given"),
    ],
)
def test_a_wrong_type_is_told_at_the_callers_line(
    mesh: Mesh, call: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises((MeshUsageError, BadType), match=message) as caught:
        call(mesh)
    shown = "\n".join(render(caught.value))
    assert "lambda mesh:" in shown and not any(is_hidden(line) for line in _files(shown))


def _files(shown: str) -> list[str]:
    """Return the files that an error names."""
    return [line.strip().partition(", line ")[0] for line in shown.splitlines() if ", line " in line]
