"""More ranks than a process may have files open at first, for the limit that it may raise by itself."""

from __future__ import annotations

import resource
import subprocess
import sys

NUM_FILES, NUM_RANKS = 128, 48  # a host process opens four for a rank, a program two
PROGRAM = """
import resource, subprocess, sys
from monarch_nb.actor import this_host
from monarch_nb.job import ProcessJob

def num_files():
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

def num_files_of_child():
    return int(subprocess.run(["sh", "-c", "ulimit -Sn"], capture_output=True, check=True).stdout)

num = int(sys.argv[1])
unused = num_files()
few = this_host().spawn_procs({"gpus": 1}, method="spawn")
elsewhere = ProcessJob({"hosts": 1}).state().hosts.spawn_procs({"gpus": 1})
print(sorted({*few.execute(num_files).get(60).values(), *elsewhere.execute(num_files).get(60).values()}))
assert num_files() == unused, "nothing is raised before it's needed"
many = this_host().spawn_procs({"gpus": num})
print(list(many.execute(num_files).get(60).values()).count(unused))
print(list(many.execute(num_files_of_child).get(60).values()).count(unused), num_files() > unused)
later = ProcessJob({"hosts": 1}).state().hosts.spawn_procs({"gpus": 1})
print(list(later.execute(num_files).get(60).values()))
"""


def test_many_ranks_need_no_higher_limit_and_are_given_none() -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (NUM_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(NUM_RANKS)],
        capture_output=True, text=True, timeout=200, preexec_fn=limit,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        f"[{NUM_FILES}]",
        f"{NUM_RANKS}",
        f"{NUM_RANKS} True",
        f"[{NUM_FILES}]",
    ], done.stdout + done.stderr
