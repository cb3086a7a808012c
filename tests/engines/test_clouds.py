"""SkyPilot and Lightning AI by recorded answers, in the form of their sources (skypilot 0.14, lightning_sdk
2026.10): NOT run against the real thing, which needs accounts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from monarch_nb._wire import message as wire
from monarch_nb._wire.invitation import Invitation
from monarch_nb._wire.keys import KeyPair
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.job import LightningJob, SkyPilotJob, job_loads
from monarch_nb.job.allocation import Allocation, Plan
from monarch_nb.job.engines import EngineError, State, engine_of
from monarch_nb.job.spec import HostRange, HostSpec

REQUEST = "1b2c3d4e-0000-4000-8000-000000000001"
LAUNCHED = f"Submitted sky.launch request: {REQUEST}\n├── Check logs with: sky api logs 1b2c3d4e\n"


def invitation() -> tuple[Invitation, KeyPair]:
    guest = KeyPair.new()
    return Invitation("big", wire.VERSION, ("tcp://10.0.0.1:1",), guest.public, *guest, 2), guest


@pytest.fixture
def own_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    return tmp_path


class Sky:
    """A `sky` that answers what was recorded, and keeps what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.path, self.asked = folder / "sky", folder / "asked"
        self.folder = folder
        self.path.write_text(
            f'#!/bin/sh\necho "$@" >>{self.asked}\n'
            f'case "$1" in launch) for last; do :; done; cp "$last" {folder}/task.json;; esac\n'
            f'key="$1"; [ "$1" = api ] && key=api\n'
            f"cat {folder}/$key 2>/dev/null\n[ ! -e {folder}/$key.err ] && exit\n"
            f"cat {folder}/$key.err >&2; exit 1\n"
        )
        self.path.chmod(0o755)
        self.answers("--version", "skypilot, version 0.14.1")

    def answers(self, verb: str, text: Any, *, error: str = "") -> None:
        (self.folder / verb).write_text(text if isinstance(text, str) else json.dumps(text, indent=2))
        if error:
            (self.folder / f"{verb}.err").write_text(error)


@pytest.fixture
def sky(own_records: Path) -> Sky:
    return Sky(own_records)


def sky_spec(sky: Sky, **own: str) -> HostSpec:
    settings = {"sky": str(sky.path), "accelerators": "A100", **own}
    return HostSpec(
        "skypilot", HostRange(2, 2), gpus=8, python="/opt/env/bin/python", own=tuple(settings.items())
    )


def launched(sky: Sky, **own: str) -> Allocation:
    sky.answers("launch", LAUNCHED)
    spec = sky_spec(sky, **own)
    return engine_of(spec).submit(Allocation.new("big", "cloud", spec, Plan(num_spares=1)), invitation()[0])


def test_skypilot_is_given_a_task_whose_secret_is_in_a_file(sky: Sky) -> None:
    sky.answers("launch", LAUNCHED)
    spec, (given, guest) = sky_spec(sky, spot="true", retry="true", infra="aws"), invitation()
    engine = engine_of(spec)
    assert engine.usable(spec) and engine.check(spec) == []
    asked = engine.submit(Allocation.new("big", "cloud", spec, Plan(num_spares=1)), given)
    assert asked.parts == (REQUEST,) and asked.id.startswith("mnb-big-")
    command = sky.asked.read_text().splitlines()[-1]
    assert command.startswith(f"launch -y --async -d -c {asked.id} --down -i 5 -r /"), command
    task = json.loads((sky.folder / "task.json").read_text())
    assert task["num_nodes"] == 3
    assert task["resources"] == {"infra": "aws", "accelerators": "A100:8", "use_spot": True}
    (_, here), *_ = task["file_mounts"].items()
    assert Invitation.from_json(Path(here).read_text()) == given
    assert Path(here).stat().st_mode & 0o777 == 0o600
    assert guest.secret not in command and guest.secret not in json.dumps(task)
    assert subprocess.run(["bash", "-n"], input=task["run"].encode()).returncode == 0, task["run"]
    assert guest.secret not in engine.script(asked)
    sky.answers("down", "")
    engine.end_allocation(asked)
    assert not os.path.exists(here) and sky.asked.read_text().splitlines()[-1] == f"down -y {asked.id}"


def test_every_node_runs_the_launcher_with_its_number(sky: Sky, tmp_path: Path) -> None:
    """The task's own shell line is run, as SkyPilot does on each node."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" "<$(cat)>" >>{tmp_path}/ran\n')
    python.chmod(0o755)
    spec = HostSpec("skypilot", HostRange(2, 2), python=str(python), own=(("sky", str(sky.path)),))
    sky.answers("launch", LAUNCHED)
    engine_of(spec).submit(Allocation.new("big", "cloud", spec, Plan()), invitation()[0])
    run = json.loads((sky.folder / "task.json").read_text())["run"]
    for rank in range(2):
        home = tmp_path / f"home{rank}"
        home.mkdir()
        (home / ".monarch_nb.join").write_text("secret")
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "SKYPILOT_NODE_RANK": str(rank)}
        subprocess.run(["bash", "-c", run], env=env, check=True)
        assert not (home / ".monarch_nb.join").exists(), "the invitation doesn't stay"
    ran = (tmp_path / "ran").read_text().splitlines()
    assert [line.split("--join - ")[1] for line in ran] == ["--place 0 <secret>", "--place 1 <secret>"]


CLUSTER = [{"name": "mnb-big", "status": "UP", "init_status_reason": None, "nodes": 3}]
DONE = [{"status": "SUCCEEDED"}]
LOOKS = [
    ([{"request_id": REQUEST, "status": "RUNNING", "status_msg": "x"}], [], {}, State.QUEUED, "x"),
    ([{"status": "RUNNING"}], [{"status": "INIT", "init_status_reason": "Waiting for capacity"}], {},
     State.QUEUED, "Waiting for capacity"),
    ([{"status": "FAILED", "status_msg": "Unavailable: no A100"}], [], {}, State.ENDED, "no A100"),
    ([], [], {}, State.ENDED, "knows the request no more"),
    (DONE, CLUSTER, [{"job_id": 1, "status": "SETTING_UP"}], State.QUEUED, "SETTING_UP"),
    (DONE, CLUSTER, [{"job_id": 1, "status": "RUNNING", "end_at": None}], State.GRANTED, ""),
    (DONE, CLUSTER, [{"job_id": 1, "status": "FAILED"}], State.ENDED, "has ended: FAILED"),
    (DONE, [], {}, State.ENDED, "was taken down"),
]  # fmt: skip


@pytest.mark.parametrize(("requests", "clusters", "jobs", "state", "words"), LOOKS)
def test_skypilots_answers_are_understood(
    sky: Sky, requests: Any, clusters: Any, jobs: Any, state: State, words: str
) -> None:
    asked = launched(sky)
    sky.answers("api", requests)
    sky.answers("status", clusters)
    sky.answers("queue", {asked.id: jobs} if jobs else {})
    look = engine_of(asked.spec).look(asked)
    assert look.state == state and words in look.reason, look


def test_what_skypilot_refuses_is_said(sky: Sky) -> None:
    sky.answers("launch", "", error="sky.exceptions.NoCloudAccessError: run sky check\n")
    spec = sky_spec(sky)
    with pytest.raises(EngineError, match=r"sky launch: .*NoCloudAccessError: run sky check"):
        engine_of(spec).submit(Allocation.new("big", "cloud", spec, Plan()), invitation()[0])
    (sky.folder / "launch.err").unlink()
    asked = launched(sky)
    sky.answers("api", "no JSON at all", error="ConnectionError: no API server")
    with pytest.raises(EngineError, match="sky api: ConnectionError: no API server"):
        engine_of(spec).look(asked)
    sky.answers("down", "", error="no permission")
    with pytest.raises(EngineError, match=r"sky down .*It may go on and cost money: sky status"):
        engine_of(spec).end_allocation(asked)
    sky.answers(
        "logs", "(head, rank=0, pid=9) node ip-1: cannot reach the mesh at tcp://10.0.0.1:1 (timed out)\n"
    )
    assert engine_of(spec).logs(asked) == ["node ip-1: cannot reach the mesh at tcp://10.0.0.1:1 (timed out)"]


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"idle_minutes": "soon"}, "idle_minutes = 'soon': expected a number of minutes"),
        ({"spot": "maybe"}, "spot = 'maybe': expected true or false"),
        ({"accelerators": ""}, 'of which kind? accelerators = "A100"'),
    ],
)
def test_wrong_settings_of_skypilot_are_named(sky: Sky, own: dict[str, str], words: str) -> None:
    spec = sky_spec(sky, **own)
    (problem,) = engine_of(spec).check(spec)
    assert words in problem


def test_without_sky_it_says_what_to_install() -> None:
    spec = HostSpec("skypilot", own=(("sky", "/none/sky"),))
    assert "uv tool install skypilot" in engine_of(spec).usable(spec).why_not
    with pytest.raises(
        MeshUsageError, match=r"\[skypilot\] unknown key 'acelerators'. Did you mean accelerators"
    ):
        engine_of(HostSpec("skypilot", own=(("acelerators", "A100"),)))


# --- Lightning AI

SDK = """
import json, os, pathlib
kept = pathlib.Path(os.environ["KEPT"])
class Machine:
    @classmethod
    def from_str(cls, name):
        if name == "NONE": raise ValueError("unknown machine NONE")
        return name
class Job:
    def __init__(self, name, teamspace=None):
        self.name, self.status = name, json.loads((kept / "status").read_text())
        self.logs = (kept / "logs").read_text()
    @classmethod
    def run(cls, **given):
        (kept / "given").write_text(json.dumps(given))
        return cls(given["name"])
    def stop(self):
        (kept / "stopped").write_text(self.name)
"""


@pytest.fixture
def lightning(own_records: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (own_records / "sdk" / "lightning_sdk").mkdir(parents=True)
    (own_records / "sdk" / "lightning_sdk" / "__init__.py").write_text(SDK)
    (own_records / "status").write_text('"Pending"')
    (own_records / "logs").write_text("")
    driver = own_records / "driver"
    driver.write_text(
        f'#!/bin/sh\nexport PYTHONPATH={own_records}/sdk KEPT={own_records}\nexec {sys.executable} "$@"\n'
    )
    driver.chmod(0o755)
    monkeypatch.setenv("LIGHTNING_CLOUD_SPACE_ID", "studio")
    return own_records


def studio_spec(folder: Path, machine: str = "H100_X_8") -> HostSpec:
    own = (("machine", machine), ("driver", f"{folder}/driver"), ("folder", f"{folder}/joins"))
    return HostSpec("lightning", HostRange(2, 2), time_s=7200.0, own=own)


def test_lightning_starts_a_job_of_several_machines(lightning: Path) -> None:
    spec, (given, guest) = studio_spec(lightning), invitation()
    engine = engine_of(spec)
    assert engine.usable(spec) and engine.check(spec) == []
    asked = engine.submit(Allocation.new("big", "studio", spec, Plan()), given)
    job = json.loads((lightning / "given").read_text())
    assert (job["name"], job["machine"], job["num_machines"]) == (asked.id, "H100_X_8", 2)
    assert job["max_runtime"] == 7200 and job["interruptible"] is False
    assert guest.secret not in json.dumps(job) and job["command"].endswith(f"<{asked.directory}")
    assert Path(asked.directory).stat().st_mode & 0o777 == 0o600
    for status, state in (
        ("Pending", State.QUEUED), ("Running", State.GRANTED), ("Stopping", State.LEAVING),
        ("Failed", State.ENDED), ("Completed", State.ENDED),
    ):  # fmt: skip
        (lightning / "status").write_text(json.dumps(status))
        assert engine.look(asked).state == state
    (lightning / "logs").write_text("setting up\nnode ip-2: this invitation isn't good any more\n")
    engine.look(asked)
    assert engine.logs(asked) == ["node ip-2: this invitation isn't good any more"]
    (lightning / "status").write_text('"Running"')
    engine.end_allocation(asked)
    assert (lightning / "stopped").read_text() == asked.id and not os.path.exists(asked.directory)


def test_what_lightning_refuses_is_said(lightning: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = studio_spec(lightning, "NONE")
    with pytest.raises(EngineError, match="lightning: ValueError: unknown machine NONE"):
        engine_of(spec).submit(Allocation.new("big", "studio", spec, Plan()), invitation()[0])
    bare = HostSpec("lightning", own=(("driver", sys.executable),))
    assert "which machines?" in engine_of(bare).check(bare)[0]
    monkeypatch.delenv("LIGHTNING_CLOUD_SPACE_ID")
    assert "isn't in a Studio" in engine_of(spec).usable(spec).why_not


def test_their_jobs_are_written_and_read() -> None:
    sky = SkyPilotJob({"a": 2}, "A100", "/opt/python", 8, {"spot": "true"})
    studio = LightningJob({"a": 1, "b": 3}, "H100_X_8")
    for job in (sky, studio):
        assert job_loads(job.dumps()).spec() == job.spec()
    assert sky.spec().own_value("spot") == "true" and studio.spec().wanted == HostRange(4, 4)
