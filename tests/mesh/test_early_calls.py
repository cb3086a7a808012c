"""Calls with big arguments, which ranks are sent while the arguments are still being copied."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from monarch_nb._wire import segment
from monarch_nb.actor import Actor, MeshFailure, ProcMesh, endpoint, this_host
from monarch_nb.exceptions import ActorError, SupervisionError

NUM_BYTES = 2 * segment.MIN_LATCHED_BYTES


@pytest.fixture
def alone() -> Iterator[ProcMesh]:
    """Two ranks of this very machine: what goes to another one isn't sent early."""
    mesh = this_host().spawn_procs({"gpus": 2})
    yield mesh
    mesh.stop(grace_s=0.0).get(30)


class ReadsItself:
    """Looks at its bytes while it's decoded."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data
        self.total = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.total = int(self.data.sum())


class Takes(Actor):
    def __init__(self) -> None:
        self.sums: list[int] = []

    @endpoint
    def take(self, value: Any) -> int:
        self.sums.append(int(value.sum()))
        return self.sums[-1]

    @endpoint
    def total(self, value: ReadsItself) -> int:
        return value.total

    @endpoint
    def taken(self) -> list[int]:
        return self.sums

    @endpoint
    def dies_while_it_calls(self, others: Any, beside: Any) -> None:
        def die(*_: Any, **__: Any) -> None:
            beside.taken.call_one().get()  # goes the same way: the call has arrived before
            os.kill(os.getpid(), signal.SIGKILL)

        segment.copy_bytes = die  # type: ignore[assignment]
        others.take.broadcast(torch.ones(NUM_BYTES, dtype=torch.uint8))


@pytest.mark.parametrize("kind", ["tensor", "array", "object", "payload"])
def test_each_call_has_its_own_arguments(procs: ProcMesh, kind: str) -> None:
    """Segments and their latches are used again and again: nobody may see what was there before."""
    actor: Any = procs.spawn("takes", Takes)
    for n in range(1, 30):
        data = np.full(NUM_BYTES, n, np.uint8)
        if kind == "tensor":
            found = actor.take.call(torch.from_numpy(data)).get()
        elif kind == "array":
            found = actor.take.call(data).get()
        elif kind == "object":
            found = actor.total.call(ReadsItself(data)).get()
        else:
            found = actor.total.call(Text(bytes(data))).get()
        assert set(found.values()) == {n * NUM_BYTES}


class Text:
    """Its bytes are in the message's payload, not beside it."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @property
    def total(self) -> int:
        return int(np.frombuffer(self.data, np.uint8).sum())


def test_a_call_that_is_interrupted_while_its_arguments_are_copied_was_never_made(alone: ProcMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    actor: Any = alone.spawn("takes", Takes)
    value = torch.ones(NUM_BYTES, dtype=torch.uint8)
    assert set(actor.take.call(value).get().values()) == {NUM_BYTES}

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(segment, "copy_bytes", interrupt)
        for adverb in ("call", "broadcast"):  # nobody waits for the second, so its failure would be its actor's
            with pytest.raises(KeyboardInterrupt):
                getattr(actor.take, adverb)(value)
    assert all(sums == [NUM_BYTES] for sums in actor.taken.call().get().values())
    assert set(actor.take.call(value).get().values()) == {NUM_BYTES}


def test_a_caller_that_dies_while_its_arguments_are_copied_has_never_called(doomed: ProcMesh, unhandled: list[MeshFailure]) -> None:
    callers: Any = doomed.spawn("callers", Takes)
    takes: Any = doomed.spawn("takes", Takes)
    other, beside = takes.slice(hosts=0, gpus=1), callers.slice(hosts=0, gpus=1)
    with pytest.raises((ActorError, SupervisionError)):
        callers.slice(hosts=0, gpus=0).dies_while_it_calls.call_one(other, beside).get()
    assert other.taken.call_one().get() == []
    assert other.take.call_one(torch.ones(NUM_BYTES, dtype=torch.uint8)).get() == NUM_BYTES
