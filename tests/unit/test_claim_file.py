"""Claims: of any number of processes that want a name at the same time, one gets it, and loses it when it
dies.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from processes import wait_for_exit

from monarch_nb._client import warm_key
from monarch_nb._protocol.claims import ClaimNote, KeeperNote
from monarch_nb._protocol.states import ClaimState
from monarch_nb._protocol.warm import Requirements
from monarch_nb._wire.claim import Claim, holder

CODE = """
import sys
from monarch_nb._wire.claim import Claim
sys.stdin.readline()
claim = Claim.acquire(sys.argv[1], sys.argv[2].encode())
print("yes" if claim else "no", flush=True)
sys.stdin.readline()
"""


def start(path: str, number: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CODE, path, str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def close(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def ask(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_one_of_many_gets_it_and_a_killed_one_loses_it(tmp_path: Path) -> None:
    path = str(tmp_path / "claim")
    for _ in range(3):
        processes = [start(path, number) for number in range(6)]
        for process in processes:
            ask(process)
        answers = [answer(process) for process in processes]
        assert sorted(answers) == ["no"] * 5 + ["yes"]
        winner = answers.index("yes")
        assert holder(path) == b"%d" % winner
        processes[winner].send_signal(signal.SIGKILL)
        assert wait_for_exit(processes[winner].pid)
        assert holder(path) is None
        claim = Claim.acquire(path)
        assert claim is not None
        claim.release()
        for process in processes:
            close(process)


def test_looking_takes_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "claim")
    process = start(path, 1)
    assert holder(path) is None
    assert not os.path.exists(path)
    ask(process)
    assert answer(process) == "yes"
    assert holder(path) == b"1"
    assert Claim.acquire(path) is None
    close(process)


def test_a_file_that_was_removed_is_claimed_anew(tmp_path: Path) -> None:
    path = str(tmp_path / "claim")
    first = Claim.acquire(path, b"1")
    assert first is not None and first.holds
    os.unlink(path)
    assert not first.holds
    second = Claim.acquire(path, b"2")
    assert second is not None
    first.release()
    assert holder(path) == b"2", "who has lost a name doesn't take the next one's away"
    second.release()


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = fcntl.fcntl

    def refuse(fd: int, *arguments: Any) -> Any:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(str(tmp_path)):
            raise OSError(errno.ENOLCK, "no locks available")
        return real(fd, *arguments)

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    path = str(tmp_path / "claim")
    claim = Claim.acquire(path, b"1")
    assert claim is not None
    assert holder(path) == b"1"
    assert Claim.acquire(path) is None
    claim.release()
    assert holder(path) is None


NOTE = ClaimNote(ClaimState.ENDING, 7, "notebook \udce9.ipynb (pid 5)")


def test_notes_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = str(tmp_path / "claim")
    claim = Claim.acquire(path, NOTE.as_json())
    assert claim is not None
    assert json.loads((tmp_path / "claim").read_text()) == {"state": "ending", "pid": 7, "who": NOTE.who}
    assert ClaimNote.read(holder(path) or b"") == NOTE
    claim.write(b"{}")
    assert ClaimNote.read(holder(path) or b"") == ClaimNote()
    claim.release()
    keeper = KeeperNote("here", 7, 5, "/bin/python", 1.5, (8, 6, "/tmp/x"))
    assert KeeperNote.of_json(keeper.as_json()) == keeper


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b"7", b"[" * 100_000, b'{"pid": "7"}', b'{"state": "of a later version"}']
)
def test_notes_that_are_none_say_nothing(data: bytes) -> None:
    assert ClaimNote.read(data) == ClaimNote()
    with pytest.raises(ValueError):
        KeeperNote.of_json(data)


def test_notes_of_later_versions_may_say_more() -> None:
    assert ClaimNote.read(NOTE.as_json()[:-1] + b', "later": [1]}') == NOTE


def test_requirements_go_by_names_that_people_understand() -> None:
    ours = warm_key.requirements()
    assert Requirements.of_json(ours.as_json()) == ours
    theirs = replace(ours, variables={**ours.variables, "TZ": "Here"}, priority=(7, 0, ""))
    assert warm_key.differences(ours, theirs) == ["priority", "variable TZ"]
    assert warm_key.key_of(ours) != warm_key.key_of(theirs)
    with pytest.raises(ValueError):
        Requirements.of_json(b"[]")
