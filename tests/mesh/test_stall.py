"""A controller that stands still itself makes no losses: what was said meanwhile is read before anybody is
judged."""

from __future__ import annotations

import os
import signal
import time

from monarch_nb._client import session
from monarch_nb._host.agent.process import LOST_AFTER_S
from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.states import HostState
from monarch_nb.job import ProcessJob

T = 60


def test_a_controller_that_was_stopped_finds_its_hosts_and_they_find_it() -> None:
    job = ProcessJob({"hosts": 2})
    procs = job.state().hosts.spawn_procs({"gpus": 1})
    pids = list(procs.execute(os.getpid).get(T).values())
    controller = session.current().request(Status()).pid
    os.kill(controller, signal.SIGSTOP)
    try:
        time.sleep(LOST_AFTER_S + 3.0)  # longer than anybody may be silent
    finally:
        os.kill(controller, signal.SIGCONT)
    time.sleep(2.5)  # two beats, in which it would judge
    registry = session.current().request(Status())
    assert [h.state for h in registry.hosts][-2:] == [HostState.UP, HostState.UP]
    assert list(procs.execute(os.getpid).get(T).values()) == pids
    assert all(row.end is None for row in registry.procs if row.pid in pids)
    job.kill()
