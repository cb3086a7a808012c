"""Hosts that join a mesh, or take a lost one's place, have the environment that it was given before ranks
start on them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from runtime import run_in_runtime

from monarch_nb._sync.env.store import ID_LENGTH

PROGRAM = Path(__file__).with_name("joining_program.py")


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("joined")
    return run_in_runtime(folder, PROGRAM, f"joined-{os.getpid()}", str(folder / "hosts"))


def test_a_host_in_a_lost_ones_place_starts_ranks_in_it(joined: dict[str, Any]) -> None:
    assert joined["id"][:ID_LENGTH] in joined["healed"][-1], (joined["healed"], joined["heal said"])


def test_a_host_that_joins_gets_what_is_followed_as_it_is_then(joined: dict[str, Any]) -> None:
    assert joined["new id"] != joined["id"]
    assert joined["new id"][:ID_LENGTH] in joined["grown"][-1], joined["grow said"]
    assert joined["version"] == 2


def test_a_host_that_joins_later_gets_what_the_others_have(joined: dict[str, Any]) -> None:
    assert "/store/envs/" in joined["not followed"][-1], joined["joined later"]
    assert joined["version later"] == 2


def test_a_cell_is_run_by_ranks_whose_zygote_is_being_replaced(joined: dict[str, Any]) -> None:
    assert joined["healed by itself"] == [True, True]


def test_each_had_a_store_of_its_own(joined: dict[str, Any]) -> None:
    prefixes = [joined["healed"][-1], joined["grown"][-1], joined["not followed"][-1]]
    assert len({prefix.partition("/store/")[0] for prefix in prefixes}) == len(prefixes)
