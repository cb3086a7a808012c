"""Start-or-attach in Python, and a mesh where marimo shows it."""

from __future__ import annotations

import pytest

import monarch_nb


def test_a_running_mesh_is_attached_to_if_it_is_what_was_asked_for() -> None:
    first = monarch_nb.start("again", {"procs": 2}, attach=True)
    try:
        first.run("x = 40 + rank")
        second = monarch_nb.start("again", {"procs": 2}, attach=True)
        assert list(second.pull("x").values()) == [40, 41]
        assert monarch_nb.start("again", attach=True).sizes == {"procs": 2}
        with pytest.raises(ValueError, match="mesh 'again' runs already with procs=2, not procs=3"):
            monarch_nb.start("again", {"procs": 3}, attach=True)
        mime, shown = first._mime_()
        assert mime == "text/html" and "again" in shown and "procs=2" in shown
    finally:
        first.stop().get()
    assert first._mime_()[0] == "text/plain" and "has ended" in first._mime_()[1]
