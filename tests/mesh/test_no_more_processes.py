"""A machine that has no more processes: ranks that can't be forked say so, and everything else goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from processes import wait_for_exit

PROGRAM = """
import sys
from pathlib import Path
from monarch_nb.actor import this_host
from monarch_nb._client import session
from monarch_nb._protocol.programs import Status

group = Path(sys.argv[1])
first = this_host().spawn_procs({"gpus": 1})
assert list(first.execute(int).get(60).values()) == [0]
zygote = session.current().request(Status()).zygote_pid
(group / "cgroup.procs").write_text(str(zygote))
(group / "pids.max").write_text("1")
try:
    this_host().spawn_procs({"gpus": 4}).execute(int).get(60)
except RuntimeError as error:
    print(error)
print("first", list(first.execute(int).get(60).values()))
(group / "pids.max").write_text("max")
print("again", list(this_host().spawn_procs({"gpus": 4}).execute(int).get(60).values()))
print("zygote", session.current().request(Status()).zygote_pid == zygote)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group that limits the number of processes."""
    root = Path("/sys/fs/cgroup")
    path = (root / "pids" if (root / "pids").is_dir() else root) / f"mnb-test-{os.getpid()}"
    try:
        path.mkdir()
        (path / "pids.max").write_text("max")
    except OSError as error:
        with suppress(OSError):
            path.rmdir()
        pytest.skip(f"needs a control group for the number of processes: {error}")
    yield path
    for pid in (path / "cgroup.procs").read_text().split():
        assert wait_for_exit(int(pid))
    path.rmdir()


def test_ranks_that_cannot_be_forked_say_so_and_the_rest_goes_on(group: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(group)], capture_output=True, text=True, timeout=200
    )
    out = done.stdout
    assert "can't be forked: Resource temporarily unavailable" in out, out + done.stderr
    assert "first [0]" in out and "again [0, 0, 0, 0]" in out and "zygote True" in out, out + done.stderr
