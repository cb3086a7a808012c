"""How often a host process looks at its ranks: as often as it should, whoever comes and goes."""

from __future__ import annotations

import time
from pathlib import Path

from monarch_nb._host.agent import resource_monitor
from monarch_nb._host.agent.resource_monitor import ResourceMonitor
from monarch_nb._host.agent.supervisor import Supervisor
from monarch_nb._host.loop import Loop

NUM_TOGGLES = 30


class Counted(ResourceMonitor):
    """Counts how often it looks."""

    num_polls = 0
    num_samples = 0

    def _poll(self) -> None:
        self.num_polls += 1
        super()._poll()

    def _ask_where(self) -> None:
        self.num_samples += 1
        super()._ask_where()


def test_who_watches_on_and_off_makes_it_look_no_more_often(tmp_path: Path) -> None:
    loop = Loop()
    supervisor = Supervisor(loop, 0, "here", lambda end: None, lambda rank, piece: None, [], str(tmp_path))
    looked = Counted(1, str(tmp_path), loop, supervisor, lambda proc, frame: None, lambda rows, host: None)
    for _ in range(NUM_TOGGLES):
        looked.watch(True)
        looked.watch(False)
    looked.watch(True)
    looked.num_polls = looked.num_samples = 0
    begun = time.monotonic()
    loop.call_later(1.5 * resource_monitor.SAMPLE_S, loop.stop)
    loop.run()
    took = time.monotonic() - begun
    assert 1 <= looked.num_polls <= took / resource_monitor.POLL_S + 1
    assert 1 <= looked.num_samples <= took / resource_monitor.SAMPLE_S + 1
