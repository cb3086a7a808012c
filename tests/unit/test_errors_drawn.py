"""The tree of errors that `exceptions` draws is the one that there is."""

from __future__ import annotations

import re

from monarch_nb import exceptions
from monarch_nb.actor import MeshFailure

LINE = re.compile(r"(?m)^    ([ │├└─]*)(\w+) ")
NAMES = {**vars(exceptions), "MeshFailure": MeshFailure}


def drawn() -> list[tuple[str, str]]:
    """Return each error that is drawn below another, and that one."""
    found, path = [], ["MeshError"]
    for stem, name in LINE.findall((exceptions.__doc__ or "").replace("    MeshError\n", "")):
        depth = len(stem) // 5
        if depth:
            found.append((name, path[depth - 1]))
        path[depth:] = [name]
        if not depth:
            path[0] = "MeshError"
    return found


def test_each_error_is_one_of_what_it_is_drawn_under() -> None:
    assert len(drawn()) > 15
    assert [(name, above) for name, above in drawn() if not issubclass(NAMES[name], NAMES[above])] == []


def test_no_error_of_a_mesh_is_left_out() -> None:
    public = {name for name in exceptions.__all__ if issubclass(NAMES[name], exceptions.MeshError)}
    assert public - {name for name, _ in drawn()} == {"MeshError"}


def test_errors_of_lower_rooms_are_drawn_apart() -> None:
    below = {
        name
        for name in exceptions.__all__
        if isinstance(NAMES[name], type) and issubclass(NAMES[name], BaseException)
    }
    assert {name for name in below if not issubclass(NAMES[name], exceptions.MeshError)} == {
        "CannotPickle",
        "CannotUnpickle",
        "RankSetError",
        "SharedMemoryError",
    }
