"""The allocation that this program runs in: a notebook under sbatch or salloc takes its job's nodes, by a
step of that job.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from monarch_nb._wire.invitation import Invitation
from monarch_nb._wire.process import is_running, start_time
from monarch_nb.job.allocation import Allocation, records_directory
from monarch_nb.job.engines import shell
from monarch_nb.job.engines.base import Capabilities, EngineError, Inside, Look, State, Usable
from monarch_nb.job.engines.slurm import Slurm, invitation_path
from monarch_nb.job.spec import HostRange, HostSpec


def num_nodes() -> int:
    """Return the number of nodes of the Slurm job that this program runs in; 0 outside of a job."""
    number = os.environ.get("SLURM_JOB_NUM_NODES", "")
    return int(number) if number.isdigit() and os.environ.get("SLURM_JOB_ID") else 0


def inside(asked: Allocation) -> Inside:
    """Return what a mesh inside this job takes: all nodes, but for spares.

    Raises:
        EngineError: if there is none but spares.
    """
    num = num_nodes() - asked.plan.num_spares
    if num < 1:
        raise EngineError(
            f"the job has {num_nodes()} nodes, and {asked.plan.num_spares} of them are to be spares"
        )
    had = replace(asked.spec, time_s=None, partition="", account="", login="", own=())
    spec = replace(had, engine=OwnAllocation.name, controller="", hosts=HostRange(num, num), machines=())
    return Inside(spec, invitation_path(asked))


class OwnAllocation(Slurm):
    """The engine of the Slurm job that this program runs in: its hosts are the job's nodes."""

    name = "auto"
    can = Capabilities()
    own_keys = ("step",)
    """step: further flags of srun."""

    def usable(self, spec: HostSpec) -> Usable:
        if not num_nodes():
            return Usable(
                "this program runs in no Slurm job (there is no SLURM_JOB_ID): start the notebook by sbatch "
                "or salloc, or say where hosts are: --on PROFILE"
            )
        return (
            Usable()
            if shutil.which("srun")
            else Usable("there is no srun here: apt-get install slurm-client")
        )

    def completed(self, spec: HostSpec) -> HostSpec:
        return (
            spec
            if spec.hosts or not num_nodes()
            else replace(spec, hosts=HostRange(num_nodes(), num_nodes()))
        )

    def check(self, spec: HostSpec) -> list[str]:
        if spec.wanted.least <= num_nodes():
            return []
        job = os.environ["SLURM_JOB_ID"]
        return [f"{spec.wanted.least} hosts were asked for, and slurm job {job} has {num_nodes()}"]

    def submit(self, allocation: Allocation, invitation: Invitation) -> Allocation:
        allocation = replace(allocation, id=os.environ["SLURM_JOB_ID"], directory=records_directory())
        with open(_log_path(allocation), "wb") as log:
            step = subprocess.Popen(
                self._step(allocation), stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        assert step.stdin is not None
        step.stdin.write(invitation.to_json().encode())
        step.stdin.close()
        step.returncode = 0  # the step outlives this program, and isn't waited for here
        return replace(allocation, parts=(f"{step.pid} {start_time(step.pid)}",))

    def recalled(self, allocation: Allocation) -> Allocation:
        """Return the allocation as it is: a step that nobody noted ends as no mesh answers it."""
        return allocation

    def _step(self, allocation: Allocation) -> list[str]:
        spec = allocation.spec
        num = min(spec.wanted.most + allocation.plan.num_spares, num_nodes())
        cores = os.environ.get("SLURM_CPUS_ON_NODE", "")
        flags = [f"--jobid={allocation.id}", f"--nodes={num}", f"--ntasks={num}", "--ntasks-per-node=1"]
        flags += ["--overlap", "--no-kill", "--kill-on-bad-exit=0", "--export=ALL", "--label"]
        flags += [f"--cpus-per-task={cores}"] if cores.isdigit() else []
        flags += spec.own_value("step").split()
        return ["srun", *flags, "bash", "-c", shell.host_script(spec)]

    def look(self, allocation: Allocation) -> Look:
        found = super().look(allocation)
        if not _lives(allocation):
            return Look(State.ENDED, "its step has ended")
        wanted = min(allocation.spec.wanted.most + allocation.plan.num_spares, len(found.nodes))
        return replace(found, nodes=found.nodes[:wanted])

    def end_allocation(self, allocation: Allocation) -> None:
        """End the step; the job continues, because this program runs in it."""
        for part in allocation.parts if _lives(allocation) else ():
            with suppress(ProcessLookupError):
                os.kill(int(part.split()[0]), signal.SIGTERM)
        with suppress(FileNotFoundError):
            os.unlink(_log_path(allocation))

    def further(self, asked: Sequence[Allocation], num: int) -> HostSpec:
        raise EngineError(
            f"slurm job {asked[0].id} gets no more nodes: another mesh may have some, --on slurm"
        )

    def release(self, allocation: Allocation, nodes: Sequence[str]) -> Allocation:
        return allocation

    def script(self, allocation: Allocation) -> str:
        return shlex.join(self._step(replace(allocation, id=os.environ.get("SLURM_JOB_ID", ""))))

    def _log(self, allocation: Allocation) -> str:
        return _log_path(allocation)


def _lives(allocation: Allocation) -> bool:
    """Return whether the step's srun still runs; another process with the same pid doesn't count."""
    return any(is_running(int(pid), int(began)) for pid, began in map(str.split, allocation.parts))


def _log_path(allocation: Allocation) -> str:
    return os.path.join(allocation.directory, f"{allocation.mesh}.step")
