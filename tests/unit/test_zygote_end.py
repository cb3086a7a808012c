"""A zygote that has died, before its host process has heard of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, os, select, signal, sys
from monarch_nb._host.loop import Loop
from monarch_nb._host.agent.supervisor import Supervisor
from monarch_nb._protocol.rank_spec import GroupPlace, GroupSpec, HostFacts, RankPlace, SharedSpec
from monarch_nb._protocol.runs import runs_of

told = {}

def ended(news):
    told[news.proc] = news.plain()
    if len(told) == 2:
        loop.stop()

loop = Loop()
host = Supervisor(loop, 0, "here", ended, lambda rank, piece: None, sys.path, sys.argv[1])
host.warm_up()
zygote = host.zygote_pid
os.kill(zygote, signal.SIGSTOP)
nowhere = GroupPlace(runs_of([1, 2]), runs_of([0]), ("", "", "", "", "", 0, None))
here = HostFacts(sys.argv[1], "here", [], False)
spec = SharedSpec(GroupSpec("g", b"", bootstrap=b"no function"), nowhere, here)
host.start([RankPlace(1, 0, 0, 1, 2, {})], spec, "fork")
watch = os.pidfd_open(zygote)
os.kill(zygote, signal.SIGKILL)
select.select([watch], [], [])
host.start([RankPlace(2, 1, 0, 1, 2, {})], spec, "fork")  # a rank that can't do anything, and ends
loop.call_later(60, loop.stop)
loop.run()
host.close()
print(json.dumps(told))
"""


def test_what_was_asked_of_it_is_told_and_its_successor_does_the_rest(tmp_path: Path) -> None:
    env = {
        **os.environ,
        "MONARCH_NB_PRELOAD": "none",
    }  # it ends all the same, and its successor is warm sooner
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True, env=env)
    ends = json.loads(found.stdout)
    assert ends["1"]["reason"] == "was never started: the zygote, which forks ranks, had died", ends
    assert ends["2"]["pid"] and ends["2"]["exit_code"] == 1 and not ends["2"]["reason"], ends
