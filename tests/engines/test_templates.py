"""PBS and LSF by their templates. Recorded answers: NOT run against the real thing, which can't be had."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from monarch_nb._wire import message as wire
from monarch_nb._wire.invitation import Invitation
from monarch_nb._wire.keys import KeyPair
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.job.allocation import Allocation, Plan
from monarch_nb.job.engines import EngineError, State, engine_of, ignored
from monarch_nb.job.profiles import Profile
from monarch_nb.job.spec import HostRange, HostSpec
from monarch_nb.mesh import on_engine

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
    for name, text in ((submit, answer), (look, message), ("qdel", ""), ("bkill", ""), ("qselect", "")):
        _program(tmp_path, name, text)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    spec = HostSpec("command", HostRange(2, 2), python="/opt/python", own=(("template", template),))
    engine, guest = engine_of(spec), KeyPair.new()
    assert engine.usable(spec) and engine.check(spec) == []
    given = Invitation("big", wire.VERSION, ("tcp://10.0.0.1:1",), guest.public, *guest, 2)
    new = Allocation.new("big", "lab", spec, Plan())
    asked = engine.submit(new, given)
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


HEADERS = {
    "pbs": (
        "#PBS -l select=3:ngpus=8\n#PBS -l place=scatter\n#PBS -l walltime=01:30:00\n"
        "#PBS -q a100\n#PBS -A team",
        "#PBS -l select=2\n#PBS -l place=scatter\n#PBS -r n",
    ),
    "lsf": (
        "#BSUB -n 3\n#BSUB -R span[ptile=1]\n#BSUB -gpu num=8\n#BSUB -W 90\n#BSUB -q a100\n#BSUB -P team",
        "#BSUB -n 2\n#BSUB -R span[ptile=1]\numask",
    ),
}


@pytest.mark.parametrize("template", HEADERS)
def test_a_batch_system_is_told_all_that_was_asked_for(template: str) -> None:
    all_of_it, least = HEADERS[template]
    bare = HostSpec("command", HostRange(2, 2), own=(("template", template),))
    spec = replace(bare, gpus=8, time_s=5400.0, partition="a100", account="team")
    assert ignored(spec) == ""
    assert all_of_it in engine_of(spec).script(Allocation.new("big", "lab", spec, Plan(num_spares=1)))
    assert least in engine_of(bare).script(Allocation.new("big", "lab", bare, Plan()))


@pytest.mark.parametrize(("template", "find"), [("pbs", "qselect"), ("lsf", "bjobs")])
def test_a_job_whose_number_was_lost_is_found_by_its_name(
    template: str, find: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    spec = HostSpec("command", HostRange(2, 2), own=(("template", template),))
    asked, engine = Allocation.new("big", "lab", spec, Plan()), engine_of(spec)
    _program(tmp_path, find, "1234.pbs01")
    assert engine.recalled(asked).id == "1234.pbs01"
    assert asked.request_name in (tmp_path / f"{find}.args").read_text()
    (tmp_path / find).write_text("#!/bin/sh\necho 'Job <big> is not found' >&2; exit 255")
    assert engine.recalled(asked) == asked
    (tmp_path / find).write_text("#!/bin/sh\necho 'LSF is down. Please wait' >&2; exit 255")
    with pytest.raises(EngineError, match="LSF is down"):
        engine.recalled(asked)


BATCH = {"submit": "qsub", "look": "qstat {id}", "end": "qdel {id}", "each": "srun"}


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"id": "Job (<"}, r"id = 'Job (<' is no regular expression: missing )"),
        ({"granted": "*"}, r"granted = '*' is no regular expression: nothing to repeat"),
        ({"header": "#PBS -q {quue}"}, "header has an unknown field {quue}. Did you mean queue?"),
        ({"each": ""}, "4 hosts were asked for: a job's script runs on its first node only. What runs"),
    ],
)
def test_what_a_batch_system_cannot_be_told_is_refused(own: dict[str, str], message: str) -> None:
    spec = HostSpec("command", HostRange(4, 4), own=tuple({**BATCH, **own}.items()))
    (found,) = engine_of(spec).check(spec)
    assert message in found


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (HostSpec("ssh", time_s=7200.0), "engine ssh would ignore time = 2h: leave it away"),
        (HostSpec("ray", time_s=7200.0), "engine ray would ignore time = 2h: leave it away"),
        (HostSpec("ssh", partition="zz"), "engine ssh would ignore partition = zz"),
        (HostSpec("compose", setup=("a", "b")), "engine compose would ignore setup = a, b"),
        (HostSpec("kubernetes", account="q"), "engine kubernetes would ignore account = q"),
        (HostSpec("slurm", machines=("a", "b")), "engine slurm chooses hosts by itself, not a,b: give a num"),
        (HostSpec("command", partition="zz", own=tuple(BATCH.items())), "write {queue} into header = of [.c"),
    ],
)
def test_what_an_engine_would_ignore_is_refused(spec: HostSpec, message: str) -> None:
    assert message in ignored(spec)
    with pytest.raises(MeshUsageError) as raised:
        on_engine.usable_engine(Profile("lab", spec))
    assert str(raised.value).startswith("start --on lab: engine ") and message in str(raised.value)


def test_what_engines_can_ask_for_is_not_refused() -> None:
    fields = {"header": "#PBS -q {queue} -l walltime={time},ngpus={gpus}", "submit": "qsub{account| -A }"}
    spec = HostSpec("command", own=tuple({**BATCH, **fields}.items()))
    spec = replace(spec, gpus=8, time_s=60.0, partition="p", account="a", login="me@there", python="/python")
    assert ignored(spec) == "" == ignored(replace(spec, engine="slurm", own=()))
    assert ignored(HostSpec("ssh", gpus=8, python="/python", setup=("a",))) == ""
