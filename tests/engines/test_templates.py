"""PBS and LSF by their templates. Recorded answers: NOT run against the real thing, which can't be had."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from monarch_nb._wire import message as wire
from monarch_nb._wire.invitation import Invitation
from monarch_nb._wire.keys import KeyPair
from monarch_nb.job.allocation import Allocation, Plan
from monarch_nb.job.engines import State, engine_of
from monarch_nb.job.spec import HostRange, HostSpec

QUEUED_PBS = (
    "Job Id: 1234.pbs01\n    Job_Name = big\n    job_state = Q\n    comment = Not Running: Insufficient"
)
LSF_SAID = "Job <1234> is submitted to default queue <normal>."
CASES = [
    ("pbs", "qsub", "1234.pbs01", "1234.pbs01", "qstat", QUEUED_PBS, State.QUEUED),
    ("pbs", "qsub", "1234.pbs01", "1234.pbs01", "qstat", QUEUED_PBS.replace("= Q", "= R"), State.GRANTED),
    ("pbs", "qsub", "1234.pbs01", "1234.pbs01", "qstat", "qstat: Unknown Job Id 1234.pbs01", State.ENDED),
    ("lsf", "bsub", LSF_SAID, "1234", "bjobs", "PEND", State.QUEUED),
    ("lsf", "bsub", LSF_SAID, "1234", "bjobs", "RUN", State.GRANTED),
    ("lsf", "bsub", LSF_SAID, "1234", "bjobs", "EXIT", State.ENDED),
]


def _program(folder: Path, name: str, message: str) -> None:
    """Make a command that keeps what it was given, and answers what was recorded."""
    path = folder / name
    keep = f'cat >{folder}/{name}.in; echo "$@" >{folder}/{name}.args'
    path.write_text(f"#!/bin/sh\n{keep}\ncat <<'SAID'\n{message}\nSAID\n")
    path.chmod(0o755)


@pytest.mark.parametrize(("template", "submit", "answer", "number", "look", "message", "state"), CASES)
def test_recorded_answers_are_understood(
    template: str, submit: str, answer: str, number: str, look: str, message: str, state: State,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, text in ((submit, answer), (look, message), ("qdel", ""), ("bkill", "")):
        _program(tmp_path, name, text)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    spec = HostSpec("command", HostRange(2, 2), python="/opt/python", own=(("template", template),))
    engine, guest = engine_of(spec), KeyPair.new()
    assert engine.usable(spec) and engine.check(spec) == []
    given = Invitation("big", wire.VERSION, ("tcp://10.0.0.1:1",), guest.public, *guest, 2)
    asked = engine.submit(Allocation.new("big", "lab", spec, Plan()), given)
    assert asked.id == number and engine.look(asked).state == state
    script = (tmp_path / f"{submit}.in").read_text()
    assert guest.secret in script and guest.secret not in (tmp_path / f"{submit}.args").read_text()
    assert subprocess.run(["bash", "-n"], input=script.encode()).returncode == 0, script
    engine.end_allocation(asked)
    ended = (tmp_path / ("qdel.args" if template == "pbs" else "bkill.args")).read_text()
    assert ended.strip() == number


def test_every_node_of_a_job_runs_the_launcher(tmp_path: Path) -> None:
    """The script itself is run: pbsdsh is here a command that runs what it's given, twice."""
    _program(tmp_path, "unused", "")
    (tmp_path / "pbsdsh").write_text('#!/bin/sh\nshift\n"$@"\n"$@"\n')
    (tmp_path / "python").write_text(f'#!/bin/sh\necho "$@" $(cat) >>{tmp_path}/ran\n')
    for name in ("pbsdsh", "python"):
        (tmp_path / name).chmod(0o755)
    spec = HostSpec("command", HostRange(2, 2), python=f"{tmp_path}/python", own=(("template", "pbs"),))
    script = engine_of(spec).script(Allocation.new("big", "lab", spec, Plan()))
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    subprocess.run(["bash"], input=script.encode(), env=environment, check=True)
    ran = (tmp_path / "ran").read_text().splitlines()
    assert len(ran) == 2 and all("--join - <the invitation: a secret>" in line for line in ran)
    assert not list(tmp_path.glob(".monarch_nb.*")), "the invitation doesn't stay"


def test_an_unknown_template_is_named() -> None:
    spec = HostSpec("command", own=(("template", "psb"),))
    assert engine_of(spec).check(spec) == ["[command] template = 'psb' is unknown. Known: pbs, lsf"]
