"""Hosts from Lightning AI: a job of several machines, each of which runs the launcher. The notebook is in a
Studio; the job is started from that Studio's files, so the invitation lies there in a file of mode 0600.

Tested with answers in the form of lightning_sdk's sources (2026.10), never with Lightning AI itself.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from monarch_nb._wire.invitation import Invitation
from monarch_nb.job.allocation import Allocation
from monarch_nb.job.engines import shell
from monarch_nb.job.engines.base import Capabilities, Engine, EngineError, Look, NoAnswer, State, Usable
from monarch_nb.job.spec import HostSpec

DRIVER_S = 120.0
_DRIVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lightning_driver.py")
_STUDIO = "LIGHTNING_CLOUD_SPACE_ID"
"""A variable that processes in a Studio have."""
_STATES = {
    "NotCreated": State.QUEUED,
    "Pending": State.QUEUED,
    "Running": State.GRANTED,
    "Stopping": State.LEAVING,
}


@dataclass(frozen=True)
class JobState:
    """The driver's answer about a job: its status, and what it has written last."""

    status: str
    words: str = ""


class Lightning(Engine):
    """The engine of Lightning AI. An allocation's id is the job's name."""

    name = "lightning"
    can = Capabilities(queue=True, keys=("gpus", "time", "python", "setup"))
    own_keys = ("machine", "teamspace", "studio", "interruptible", "driver", "folder")

    def __init__(self) -> None:
        self._words = ""

    def usable(self, spec: HostSpec) -> Usable:
        if _STUDIO not in os.environ:
            return Usable(
                "this notebook isn't in a Studio of Lightning AI: a job's machines are reached from there"
            )
        python = _driver(spec)
        if shutil.which(python) is None:
            return Usable(f"there is no {python}: driver = an interpreter that has lightning_sdk")
        if not shell.has_module(python, "lightning_sdk"):
            return Usable(
                f"{python} has no lightning_sdk: pip install lightning_sdk there; or name another "
                "interpreter: driver = in [.lightning]"
            )
        return Usable()

    def check(self, spec: HostSpec) -> list[str]:
        if not spec.own_value("machine"):
            return [
                'lightning: which machines? machine = "H100_X_8" in [.lightning], as in lightning_sdk.Machine'
            ]
        if spec.own_value("interruptible", "false") not in ("true", "false"):
            return [
                f"[lightning] interruptible = {spec.own_value('interruptible')!r}: expected true or false"
            ]
        return []

    def submit(self, allocation: Allocation, invitation: Invitation) -> Allocation:
        spec = allocation.spec
        name = _name_for(allocation)
        asked = replace(allocation, id=name, directory=_write(spec, name, invitation.to_json()))
        self._ask(
            spec,
            do="submit",
            name=name,
            machine=spec.own_value("machine"),
            command=self.script(asked),
            num=spec.wanted.most + allocation.plan.num_spares,
            interruptible=spec.own_value("interruptible") == "true",
            max_runtime=None if spec.time_s is None else int(spec.time_s),
            studio=spec.own_value("studio"),
        )
        return asked

    def recalled(self, allocation: Allocation) -> Allocation:
        found = replace(allocation, id=_name_for(allocation))
        try:
            self._ask(found.spec, do="look", name=found.id)
        except NoAnswer:
            raise
        except EngineError:  # it has no job of that name
            return allocation
        return found

    def look(self, allocation: Allocation) -> Look:
        if not allocation.id:
            return Look(State.ENDED, "lightning was never asked")
        answer = self._ask(allocation.spec, do="look", name=allocation.id)
        found = msgspec.json.decode(answer, type=JobState)
        self._words = found.words
        state = _STATES.get(found.status, State.ENDED)
        return Look(state, f"job {allocation.id} is {found.status}")

    def end_allocation(self, allocation: Allocation) -> None:
        if allocation.id:
            self._ask(allocation.spec, do="end", name=allocation.id)
        if allocation.directory:
            with suppress(FileNotFoundError):
                os.unlink(allocation.directory)

    def logs(self, allocation: Allocation) -> list[str]:
        return [line.strip() for line in self._words.splitlines() if line.strip().startswith("node ")]

    def script(self, allocation: Allocation) -> str:
        path = allocation.directory or "<the invitation: a secret>"
        return f"{shell.host_script(allocation.spec)} <{path}"

    def _ask(self, spec: HostSpec, **request: object) -> str:
        """Run the driver with a request; return its answer as JSON.

        Raises:
            EngineError: with Lightning's message.
        """
        text = json.dumps({"teamspace": spec.own_value("teamspace"), **request})
        done = shell.run([_driver(spec), "-P", _DRIVER], text, DRIVER_S)
        if done.code != 0 or not done.out.strip():
            raise EngineError(f"lightning: {done.words}")
        return done.out.strip().splitlines()[-1]


def _name_for(allocation: Allocation) -> str:
    """Return the name of a request's job, which is known before Lightning is asked."""
    return f"mnb-{allocation.mesh}-{allocation.request_name[-6:]}"


def _driver(spec: HostSpec) -> str:
    return os.path.expanduser(spec.own_value("driver", sys.executable))


def _write(spec: HostSpec, name: str, text: str) -> str:
    """Write the invitation where the Studio's files are, from which the job is made."""
    folder = os.path.abspath(os.path.expanduser(spec.own_value("folder", "~/.monarch_nb")))
    os.makedirs(folder, 0o700, exist_ok=True)
    path = f"{folder}/{name}.join"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return path
