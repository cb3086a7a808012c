"""A controller that doesn't answer: the error says what it does meanwhile."""

from __future__ import annotations

import os
import signal

import pytest

from monarch_nb._client import session
from monarch_nb._client.controller_stack import what_it_does
from monarch_nb._protocol.programs import Status
from monarch_nb.actor import this_host
from monarch_nb.exceptions import RankTimeout

T = 60


def test_one_that_is_stopped_and_one_that_waits() -> None:
    procs = this_host().spawn_procs()
    procs.initialized.get(T)
    mine = session.current()
    controller = mine.connection
    assert controller is not None
    assert "poll" in what_it_does(controller) or "_serve_files (loop.py" in what_it_does(controller)
    os.kill(controller.pid, signal.SIGSTOP)
    try:
        with pytest.raises(RankTimeout) as late:
            mine.request(Status(), timeout_s=0.1)
    finally:
        os.kill(controller.pid, signal.SIGCONT)
    assert str(late.value) == (
        "the controller did not answer 'status' within 0.1 s: it is stopped by a signal; wake it: "
        f"kill -CONT {controller.pid}"
    )
    assert mine.request(Status()).pid == controller.pid, "it goes on"
    procs.stop().get(T)
