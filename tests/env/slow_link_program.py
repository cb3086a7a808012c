"""Run by the interpreter of a small environment: brings that to a host behind a slow link, and prints what
has come of it as JSON.

usage: slow_link_program.py PROFILE
"""

from __future__ import annotations

import json
import os
import sys

os.environ["MONARCH_NB_PRELOAD"] = "none"

from monarch_nb._client import session as sessions
from monarch_nb.job.allocation import Plan
from monarch_nb.job.engines import ENGINES
from monarch_nb.job.profiles import find_profile
from monarch_nb.mesh import on_engine
from monarch_nb.mesh.shipping import sending, slow_links
from monarch_nb.mesh.shipping.progress import Progress

slow_links.FIRST_BYTES, slow_links.LONG_S = 1 << 20, 2.0  # this environment is small


class Steps(Progress):
    """Keeps what was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[str] = []

    def step(self, what: str) -> None:
        super().step(what)
        self.shown.append(what)


if __name__ == "__main__":
    mesh = on_engine.start_on("slow", find_profile(sys.argv[1], ENGINES), Plan((("procs", 1),)))
    steps = Steps()
    try:
        part = sending.send_environment(
            sessions.of_transport(mesh._transport),
            list(mesh.living().host_indices),
            sending.scan_here(),
            copies=True,
            donors=False,
            progress=steps,
        )
    finally:
        on_engine.cancel("slow")
    (host,) = part.hosts.values()
    found = {
        "done": part.is_done,
        "problem": host.problem,
        "index": host.index_bytes,
        "sent": host.sent_bytes,
        "all": part.num_bytes,
    }
    print(json.dumps({**found, "lines": part.lines(), "steps": steps.shown, "prefix": host.prefix}))
