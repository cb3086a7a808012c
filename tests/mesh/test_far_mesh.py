"""A mesh of one's own on another machine, by a real sshd: attached to, used, kept through a lost
connection.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sshd
from far_machine import Machines, machines_in
from processes import PATIENCE_S, wait_for_exit
from waiting import wait_until

from monarch_nb._client.ssh import forward_command

pytestmark = pytest.mark.skipif(bool(sshd.why_not()), reason=sshd.why_not())
PROGRAM = Path(__file__).with_name("far_program.py")
T = 120


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with machines_in(tmp_path) as found:
        yield found


@pytest.fixture
def dev(machines: Machines) -> Machines:
    started = machines.there("start", "dev", "--procs", "2")
    assert started.returncode == 0, started.stderr
    return machines


def test_cells_go_on_through_a_lost_connection_and_nothing_is_lost(dev: Machines, tmp_path: Path) -> None:
    attached = dev.attach("dev")
    assert attached.returncode == 0, attached.stderr
    folder = tmp_path / "signs"
    folder.mkdir()
    with open(tmp_path / "said", "wb") as said:
        program = subprocess.Popen(
            [sys.executable, PROGRAM, "dev", folder], stdout=said, stderr=subprocess.STDOUT, env=dev.env
        )
    wait_until(lambda: b"before" in (tmp_path / "said").read_bytes(), "the cell's first line")
    dev.cut()
    (folder / "away").touch()
    wait_until(lambda: len(list(folder.glob("printed-*"))) == 2, "lines printed while nobody hears them")
    wait_until(lambda: b"login:dev is lost; cells go on" in (tmp_path / "said").read_bytes(), "it's told")
    assert b"] line" not in (tmp_path / "said").read_bytes()
    dev.server.restart()
    (folder / "back").touch()
    assert program.wait(T) == 0, (tmp_path / "said").read_text()
    lines = (tmp_path / "said").read_text().splitlines()
    assert any("the connection to login:dev is back, after" in line for line in lines), lines
    ours = [line for line in lines if line.startswith("[0-1] ")]
    assert ours == [f"[0-1] {text}" for text in ("before", *(f"line {i}" for i in range(200)), "after")]
    assert "sum [3, 3] 3000001" in lines and "size 3" in lines, lines
    wait_until(lambda: not dev.roads(), "ssh ends with the mesh")
    assert dev.here("list").stdout.startswith("no mesh runs")


def test_a_mesh_there_is_seen_as_ones_own_and_forgotten_when_nobody_uses_it(dev: Machines) -> None:
    assert dev.attach("dev", "--as", "far").returncode == 0
    assert dev.attach("dev", "--as", "far").returncode == 0, "a second time is the same one"
    (road,) = dev.roads()
    status = dev.here("status", "far").stdout
    assert "mesh 'dev': 2 ranks" in status, status
    keys = dev.there("share", "dev", "--list").stdout
    assert "owner-1" in keys and "owner-2" not in keys, keys
    road.parent().send_signal(signal.SIGTERM)  # the relay: as when no program has used it for a while
    assert wait_for_exit(road.pid)
    wait_until(lambda: "owner-1" not in dev.there("share", "dev", "--list").stdout, "its key is void")
    assert dev.there("status", "dev").returncode == 0, "the mesh goes on"


def test_a_key_that_was_revoked_there_ends_the_relay(dev: Machines) -> None:
    assert dev.attach("dev").returncode == 0
    assert dev.there("unshare", "dev", "--all").returncode == 0
    wait_until(lambda: not dev.roads(), "the relay has ended", PATIENCE_S)


def test_what_goes_wrong_is_said(dev: Machines) -> None:
    for command, words in (
        (("login:nothing", "--python", dev.python), "mesh 'nothing' is not running"),
        (("nowhere.invalid:dev",), "there is no host of that name"),
        (("login:dev", "--python", "/none/python"), "--python PATH names an interpreter there that has it"),
        (("x.join", "--python", dev.python), "--python goes with a machine"),
        (("login:no/name",), "can't be read"),
        (("login:dev", "--as", "no/name"), "at most 64 characters; not 'no/name'"),
    ):
        failed = dev.here("attach", *command)
        assert failed.returncode and words in failed.stderr, (command, failed.stderr)
        assert "Traceback" not in failed.stderr
    assert not dev.roads()


def test_two_meshes_of_one_name_need_another_one(dev: Machines) -> None:
    assert dev.here("start", "dev", "--procs", "1").returncode == 0
    failed = dev.attach("dev")
    assert failed.returncode == 1 and "give that one another name by --as NAME" in failed.stderr
    assert dev.attach("dev", "--as", "other").returncode == 0


def test_an_invitation_in_one_line_can_be_typed_as_it_is_shown(dev: Machines) -> None:
    shown = dev.there("share", "dev", "--token").stdout
    line = next(line for line in shown.splitlines() if "mnb:" in line)
    program, verb, token = line.split()
    assert (program, verb) == ("monarch-nb", "attach")
    attached = dev.here("attach", token)
    assert attached.returncode == 0 and "as an observer" in attached.stdout, attached.stderr


def test_an_invitation_that_lies_there_lets_in_one_machine_after_the_other(
    dev: Machines, tmp_path: Path
) -> None:
    file = tmp_path / "dev.join"
    assert dev.there("share", "dev", "--own", "--file", str(file)).returncode == 0
    for how in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):  # it leaves; it's switched off
        wait_until(lambda: dev.here("attach", f"login:{file}").returncode == 0, "the next machine is let in")
        assert "mesh 'dev': 2 ranks" in dev.here("status", "dev").stdout
        second = dev.here("attach", f"login:{file}", "--as", "other")
        assert second.returncode == 1 and "is connected by this invitation" in second.stderr, second.stderr
        (road,) = dev.roads()
        road.parent().send_signal(how)
        wait_until(lambda: not dev.roads(), "the relay has ended")
    for path, words in (
        (tmp_path / "none.join", "can't be read"),
        (tmp_path / "far" / "wrong.join", "this is no invitation"),
    ):
        if "wrong" in path.name:
            path.write_text("nonsense")
        failed = dev.here("attach", f"login:{path}")
        assert failed.returncode == 1 and words in failed.stderr, failed.stderr
    assert dev.there("share", "dev", "--file", f"{file}.2").returncode == 0
    failed = dev.here("attach", f"login:{file}.2/../dev.join.2")
    assert failed.returncode == 1 and "can't be read" in failed.stderr
    failed = dev.here("attach", f"login:{tmp_path}/dev.join.2")
    assert failed.returncode == 1 and "is an invitation for observers" in failed.stderr, failed.stderr


def test_an_invitation_of_ones_own_works_without_ssh(dev: Machines) -> None:
    said = dev.there("share", "dev", "--own", "--token").stdout
    attached = dev.here("attach", said.split()[-1])
    assert attached.returncode == 0 and "can be used here as an owner" in attached.stdout, attached.stderr
    assert not dev.roads()
    assert "[0-1] 3" in dev.here("exec", "dev", "kept = 1 + 2; print(kept)").stdout
    second = dev.here("attach", said.split()[-1], "--as", "other")
    assert second.returncode == 1 and "is connected by this invitation" in second.stderr, second.stderr

    record = Path(dev.env["JUPYTER_RUNTIME_DIR"], "monarch_nb-dev.json")
    os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)  # as when the machine is switched off
    again = dev.here("attach", said.split()[-1])
    assert again.returncode == 0, again.stderr
    assert "[0-1] 3" in dev.here("exec", "dev", "print(kept)").stdout
    assert dev.here("stop", "dev").returncode == 0


def test_a_command_waits_for_the_end_of_a_mesh(dev: Machines) -> None:
    waiting = subprocess.Popen([dev.python, "-P", "-m", "monarch_nb", "wait", "dev"], stdout=subprocess.PIPE)
    assert dev.there("stop", "dev").returncode == 0
    said, _ = waiting.communicate(timeout=T)
    assert waiting.returncode == 0 and said == b"mesh 'dev' has ended\n"


def test_owners_keys_are_for_oneself_only(dev: Machines) -> None:
    assert "invalid choice" in dev.there("share", "dev", "--role", "owner").stderr
    assert "owner-1 may be in mesh 'dev' as an owner" in dev.there("share", "dev", "--own", "--token").stdout


def test_ssh_asks_nothing_and_opens_no_port() -> None:
    command = forward_command("login", "/x/road", "tcp://10.0.0.5:29400")
    assert "-oBatchMode=yes" in command and command[command.index("-L") + 1] == "/x/road:10.0.0.5:29400"
