"""What zygotes import, by the setting for it."""

from __future__ import annotations

from monarch_nb._rank.zygote import PRELOAD_FIRST, PRELOAD_IDLE, SHELL, what_to_load


def test_all_is_imported_in_parts() -> None:
    assert what_to_load("all") == (PRELOAD_FIRST, PRELOAD_IDLE)


def test_without_torch_nothing_of_it_is_left() -> None:
    first, later = what_to_load("none")
    assert not [name for name in (*first, *later) if name.startswith("torch")] and later == (SHELL,)


def test_named_modules_are_imported_before_the_first_fork() -> None:
    for how_much in ("all", "torch", "none"):
        first, later = what_to_load(how_much)
        assert what_to_load(f"{how_much},json,torch._dynamo") == ((*first, "json", "torch._dynamo"), later)
