"""What is installed or edited in a followed environment goes to hosts before the next cell."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from environments import OF_DISTRIBUTION, Made
from runtime import run_in_runtime

from monarch_nb._sync.env.interpreter import interpreter_of
from monarch_nb._sync.env.layers import find_layers
from monarch_nb._sync.env.watching import EnvironmentWatch
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.mesh.shipping import following

PROGRAM = Path(__file__).with_name("watch_program.py")


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_in_runtime(tmp_path_factory.mktemp("followed"), PROGRAM, f"watch-{os.getpid()}")


def test_an_edited_file_goes_to_a_new_prefix_unasked(followed: dict[str, Any]) -> None:
    prefix, version = followed["first"]
    assert version == 1
    assert "sent, verified; new ranks run in it" in followed["edited"], followed["edited"]
    assert "ranks 0 run what they were started with: %mesh restart" in followed["edited"]
    assert followed["living"] == prefix, "living ranks keep what they were started in"


def test_an_edited_file_goes_alone_again_and_again(followed: dict[str, Any]) -> None:
    assert followed["sent as a whole"] == followed["sent as a whole again"] == 1, "by the first sync"
    prefix, version = followed["edited there"]
    assert version == 2 and prefix != followed["first"][0]
    assert "sent, verified; new ranks run in it" in followed["edited again"], followed["edited again"]


def test_what_is_installed_anew_goes_too_and_what_is_removed(followed: dict[str, Any]) -> None:
    assert followed["empty folder"] == "", "a folder without files is nothing"
    assert "sent, verified; new ranks run in it" in followed["in a new folder"]
    assert followed["restarted"][1:] == [2.5, 3]
    assert followed["restarted"][0] != followed["first"][0]
    assert "new ranks run in it" in followed["removed"]


def test_nothing_is_said_or_sent_without_a_change(followed: dict[str, Any]) -> None:
    assert (followed["quiet"], followed["byte code"]) == ("", "")


def test_it_ends_with_the_mode(followed: dict[str, Any]) -> None:
    assert (followed["stopped"], followed["followed"]) == ("", 0)


# --- the watch alone


@pytest.fixture
def watch(made: Made) -> Iterator[EnvironmentWatch]:
    found = EnvironmentWatch(find_layers(interpreter_of(made.python)))
    yield found
    found.close()


def test_each_kind_of_change_is_noticed_at_once(made: Made, watch: EnvironmentWatch) -> None:
    assert not watch.unseen and watch.num_folders > (8 if OF_DISTRIBUTION else 20)
    assert not watch.has_changed()
    deep = made.site / "alpha" / "deep"
    changes = (
        lambda: (made.site / "alpha" / "data.txt").write_text("in place"),
        lambda: (made.site / "fresh").write_text("x"),
        lambda: (made.site / "fresh").rename(made.site / "alpha" / "data.txt"),
        deep.mkdir,
        lambda: (deep / "module.py").touch(),
        lambda: (deep / "module.py").unlink(),
        deep.rmdir,
        lambda: (made.prefix / "bin" / "new-script").touch(),
    )
    for change in changes:
        change()
        assert watch.has_changed()
        watch.taken()
        watch.follow(find_layers(interpreter_of(made.python)))
        assert not watch.has_changed()


def test_byte_code_counts_as_nothing(made: Made, watch: EnvironmentWatch) -> None:
    made.run("import alpha, beta")
    folder = made.site / "beta" / "__pycache__"
    folder.mkdir(exist_ok=True)
    (folder / "another.cpython-311.pyc").touch()
    assert not watch.has_changed()


def test_folders_that_cannot_be_watched_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch_nb._reload.watch._is_remote", lambda _: True)
    with pytest.raises(MeshUsageError, match=r"folders of the environment can't be watched .* %mesh sync -"):
        following.FollowedEnvironment(copies=False)
