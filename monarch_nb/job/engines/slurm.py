"""Hosts from Slurm, by its own commands: on this machine, or on a login node by ssh.

One job a mesh; `srun` starts the launcher once on each node, and its standard input, which all of them get,
is the invitation. So no secret lies in an argument, a variable or a shared file. The job ends when its host
processes have ended, and they end with the mesh.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from monarch_nb._client.ssh import Done
from monarch_nb._wire.invitation import Invitation
from monarch_nb.job.allocation import Allocation
from monarch_nb.job.engines import shell
from monarch_nb.job.engines.base import Capabilities, Engine, EngineError, Look, NoAnswer, State, Usable
from monarch_nb.job.spec import ASKED_OF_ENGINES, INSIDE, HostRange, HostSpec, nearest

_FIELDS = "%T|%S|%e|%N|%D|%r"
_QUEUED = (
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
)
_GRANTED = ("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
SUBMIT_S = 30.0
"""How long sbatch may take."""
_STUCK = {
    "PartitionConfig": (
        "the partition can never provide this: ask for fewer hosts, or another one: --partition"
    ),
    "PartitionNodeLimit": "the partition allows no job that many hosts: --hosts, or --partition",
    "PartitionTimeLimit": "the partition allows no job that much time: --time, or --partition",
    "PartitionDown": "the partition is down: --partition",
    "PartitionInactive": "the partition is inactive: --partition",
    "BadConstraints": "no node has what was asked for: --gpus, or [profile.slurm] constraint",
    "ReqNodeNotAvail": "nodes that it needs are drained or down: sinfo -R says why",
    "QOSMaxWallDurationPerJobLimit": "the quality of service allows no job that much time: --time",
    "AssocMaxWallDurationPerJobLimit": "your account allows no job that much time: --time",
    "AccountNotAllowed": "the partition doesn't take this account: --account",
    "JobHeldUser": "it is held: scontrol release",
    "JobHeldAdmin": "an administrator holds it",
}
"""Reasons that don't pass by themselves, with the remedy."""


@dataclass(frozen=True)
class _Partition:
    name: str
    num_nodes: int
    limit_s: float | None


class Slurm(Engine):
    """The engine of Slurm. `own` is any flag of sbatch."""

    name = "slurm"
    can = Capabilities(queue=True, inside=True, keys=ASKED_OF_ENGINES)

    def usable(self, spec: HostSpec) -> Usable:
        if not spec.login and shutil.which("sbatch") is None:
            return Usable(
                'there is no sbatch here: name a login node, login = "me@login" in the profile; or '
                "apt-get install slurm-client"
            )
        try:
            done = shell.run_at(spec.login, ["sinfo", "--version"], timeout_s=15)
        except EngineError as error:
            return Usable(str(error))
        if "configuration source" in done.err:
            return Usable(
                f"Slurm isn't configured {f'on {spec.login}' if spec.login else 'here'}: there is no "
                'slurm.conf. Name a login node, login = "me@login" in the profile; or set SLURM_CONF'
            )
        return Usable() if done.code == 0 else Usable(f"sinfo says: {done.words}")

    def check(self, spec: HostSpec) -> list[str]:
        partitions = self._partitions(spec)
        names = [p.name for p in partitions]
        if spec.partition and spec.partition not in names:
            return [
                (
                    f"there is no partition {spec.partition!r}.{nearest(spec.partition, names)} Known: "
                    f"{', '.join(names)}"
                )
            ]
        chosen = [p for p in partitions if p.name == spec.partition] if spec.partition else partitions
        found = []
        most = max((p.num_nodes for p in chosen), default=0)
        if spec.wanted.least > most:
            found.append(f"{spec.wanted.least} hosts were asked for, and {_of(spec)} has {most}")
        limits = [p.limit_s for p in chosen]
        if (
            spec.time_s is not None
            and limits
            and None not in limits
            and spec.time_s > max(t for t in limits if t is not None)
        ):
            found.append(
                f"--time {_minutes(spec.time_s)} min is longer than {_of(spec)} allows: "
                f"{_minutes(max(t for t in limits if t is not None))} min"
            )
        return found

    def submit(self, allocation: Allocation, invitation: Invitation) -> Allocation:
        allocation = replace(allocation, directory=shell.log_directory(allocation.spec.login))
        return self._submit(allocation, self._hosts_script(allocation, invitation.to_json()))

    def submit_inside(self, allocation: Allocation) -> Allocation:
        allocation = replace(allocation, directory=shell.log_directory(allocation.spec.login))
        return self._submit(allocation, self._inside_script(allocation))

    def recalled(self, allocation: Allocation) -> Allocation:
        done = self._run(allocation.spec, ["squeue", "--noheader", "--me", "--format=%i %k"])
        if done.code != 0:
            raise EngineError(f"squeue: {done.words}")
        lines = [line.partition(" ") for line in done.out.splitlines()]
        job = next((number for number, _, comment in lines if allocation.request_name in comment), "")
        if not job:
            return allocation
        return replace(allocation, id=job, directory=shell.log_directory(allocation.spec.login))

    def invitation(self, allocation: Allocation) -> str:
        done = self._run(allocation.spec, ["cat", invitation_path(allocation)])
        return done.out if done.code == 0 else ""

    def _submit(self, allocation: Allocation, script: str) -> Allocation:
        done = shell.run_at(allocation.spec.login, ["sbatch", "--parsable"], script, SUBMIT_S)
        number = done.out.strip().partition(";")[0]
        if done.code != 0:
            kind = NoAnswer if "timed out" in done.words else EngineError  # a busy slurmctld
            raise kind(f"sbatch: {done.words.removeprefix('sbatch: error: ')}")
        if not number.isdigit():
            raise NoAnswer(f"sbatch has answered with no job's number: {done.words!r}")
        return replace(allocation, id=number)

    def script(self, allocation: Allocation) -> str:
        if allocation.spec.controller == INSIDE:
            return self._inside_script(allocation)
        return self._hosts_script(allocation, "<the invitation: a secret>")

    def _flags(self, allocation: Allocation) -> list[str]:
        """Return the lines that tell sbatch what is requested."""
        spec = allocation.spec
        least, most = spec.wanted.least, spec.wanted.most + allocation.plan.num_spares
        directory = allocation.directory or shell.log_directory(spec.login)
        flags = {
            "job-name": f"monarch-nb-{allocation.mesh}",
            "nodes": f"{least}-{most}" if least != most else str(most),
            "output": f"{directory}/slurm-%j.out",
            "export": "NONE",
            "no-requeue": "true",
            "open-mode": "append",
        }
        if spec.gpus:
            flags["gres"] = f"gpu:{spec.gpus}"
        if spec.time_s:
            flags["time"] = str(_minutes(spec.time_s))
        flags |= {
            key: value for key, value in (("partition", spec.partition), ("account", spec.account)) if value
        } | dict(spec.own)
        # By this, not by its name, a job is found again: jobs of one name are what `singleton` is about.
        flags["comment"] = ",".join(filter(None, [flags.get("comment"), allocation.request_name]))
        return [
            f"#SBATCH --{key}{'' if value == 'true' else f'={value}'}"
            for key, value in flags.items()
            if value != "false"
        ]

    def _hosts_script(self, allocation: Allocation, invitation: str) -> str:
        """Return the script of a job whose nodes become hosts of a mesh."""
        spec = allocation.spec
        # How many tasks isn't said: of a range of nodes, Slurm would give as few as these need. What is set
        # up here is every task's, too. The node's number is the task's own variable: $ is left to the node's
        # shell.
        task = (
            "srun --nodes=$SLURM_JOB_NUM_NODES --ntasks=$SLURM_JOB_NUM_NODES --ntasks-per-node=1 "
            "--no-kill --kill-on-bad-exit=0 --export=ALL --label"
        )
        start = f"exec {shell.launcher_command(spec, '--place', '$SLURM_NODEID')}"
        return self._job_script(allocation, f"{task} bash -c {shlex.quote(start)}", invitation)

    def _inside_script(self, allocation: Allocation) -> str:
        """Return the script of a job on whose first node a controller runs."""
        return self._job_script(allocation, shell.inside_command(allocation.spec), allocation.to_json())

    def _job_script(self, allocation: Allocation, command: str, text: str) -> str:
        """Return the script of a job that runs a command, with a text as its standard input."""
        return "\n".join(
            [
                "#!/bin/bash -l",
                *self._flags(allocation),
                "umask 077",
                *_variables(),
                *allocation.spec.setup,
                f"exec {command} <<'END'",
                text,
                "END",
                "",
            ]
        )

    def look(self, allocation: Allocation) -> Look:
        if not allocation.id:
            return Look(State.ENDED, "slurm knows no job of this request")
        done = self._run(
            allocation.spec,
            ["squeue", "--noheader", "--states=all", f"--jobs={allocation.id}", f"--format={_FIELDS}"],
        )
        line = done.out.strip().splitlines()[:1]
        if not line:
            if done.code != 0 and "Invalid job id" not in done.err:
                raise EngineError(f"squeue: {done.words}")
            return Look(State.ENDED, "slurm no longer knows this job")
        state, starts, ends, nodes, _, reason = line[0].split("|", 5)
        return self._look(allocation.spec, state, starts, ends, nodes, reason)

    def _look(self, spec: HostSpec, state: str, starts: str, ends: str, nodes: str, reason: str) -> Look:
        if state in _QUEUED:
            known = reason.partition(",")[0].strip()
            reason = "about to be scheduled" if reason in ("", "None") else reason
            return Look(State.QUEUED, reason, _STUCK.get(known, ""), starts_at=_when(starts))
        if state in _GRANTED:
            return Look(
                State.GRANTED, starts_at=_when(starts), ends_at=_when(ends), nodes=self._nodes(spec, nodes)
            )
        return Look(
            State.LEAVING if state == "COMPLETING" else State.ENDED,
            state.lower() if reason in ("", "None") else f"{state.lower()}: {reason}",
        )

    def _nodes(self, spec: HostSpec, compressed: str) -> tuple[str, ...]:
        if not set(compressed) & set("[,"):
            return (compressed,) if compressed else ()
        done = self._run(spec, ["scontrol", "show", "hostnames", compressed])
        return tuple(done.out.split())

    def end_allocation(self, allocation: Allocation) -> None:
        if not allocation.id:
            return
        done = self._run(allocation.spec, ["scancel", allocation.id])
        if done.code != 0 and "Invalid job id" not in done.err:
            raise EngineError(f"scancel {allocation.id}: {done.words}; it goes on")
        self._run(allocation.spec, ["rm", "-f", _log_path(allocation), invitation_path(allocation)])

    def further(self, asked: Sequence[Allocation], num: int) -> HostSpec:
        spec = asked[0].spec
        looks = [self.look(each) for each in asked]
        used = [node for look in looks for node in look.nodes]
        most = max((p.num_nodes for p in self._partitions(spec) if spec.partition in ("", p.name)), default=0)
        if len(used) + num > most:
            raise EngineError(
                f"{num} more hosts were asked for; the mesh has {len(used)}, and {_of(spec)} has {most}"
            )
        own = dict(spec.own)
        excluded = ",".join(filter(None, [own.get("exclude", ""), *used]))  # a node is one host, not two
        return replace(spec, hosts=HostRange(num, num), own=tuple({**own, "exclude": excluded}.items()))

    def release(self, allocation: Allocation, nodes: Sequence[str]) -> Allocation:
        left = [node for node in self.look(allocation).nodes if node not in nodes]
        if left:  # otherwise the request has ended, as its last launcher has
            update = ["scontrol", "update", f"JobId={allocation.id}", f"NodeList={','.join(left)}"]
            done = self._run(allocation.spec, update)
            if done.code != 0:
                why = done.words
                if "Invalid node name" in why:
                    why += ". A job keeps the node that its script runs on, until all its nodes go back"
                raise EngineError(f"slurm job {allocation.id} keeps {', '.join(nodes)}: {why}")
        return allocation

    def extend(self, allocation: Allocation, seconds: float) -> None:
        update = ["scontrol", "update", f"JobId={allocation.id}", f"TimeLimit=+{_minutes(seconds)}"]
        done = self._run(allocation.spec, update)
        if done.code == 0:
            return
        message = done.words.removeprefix("slurm_update error: ")
        if "permission" in message.lower():
            message += ". Slurm lets only its administrators lengthen a job that has begun: ask them, or save"
        raise EngineError(f"slurm job {allocation.id} got no more time: {message}")

    def logs(self, allocation: Allocation) -> list[str]:
        return shell.last_words(allocation.spec.login, self._log(allocation))

    def _log(self, allocation: Allocation) -> str:
        """Return the path of the launchers' output file, on the machine where the job was submitted."""
        return _log_path(allocation)

    # --- commands

    def _run(self, spec: HostSpec, argv: Sequence[str], text: str = "") -> Done:
        return shell.run_at(spec.login, argv, text)

    def _partitions(self, spec: HostSpec) -> list[_Partition]:
        done = self._run(spec, ["sinfo", "--noheader", "--format=%R|%D|%l"])
        if done.code != 0:
            raise EngineError(f"sinfo: {done.words}")
        found: dict[str, _Partition] = {}
        for line in done.out.splitlines():
            name, num, limit = line.split("|")
            known = found.get(name)
            found[name] = _Partition(name, int(num) + (known.num_nodes if known else 0), _limit(limit))
        return list(found.values())


def _log_path(allocation: Allocation) -> str:
    """Return the path of the launchers' output file, on the machine where the job was submitted."""
    return f"{allocation.directory}/slurm-{allocation.id}.out"


def invitation_path(allocation: Allocation) -> str:
    """Return the file of a job's invitation to the mesh inside, on the machine where it was submitted and on
    the job's first node: both have that directory, and perhaps another cluster, too, whose jobs have the same
    numbers.
    """
    return f"{allocation.directory}/inside-{allocation.request_name}.join"


def _variables() -> list[str]:
    """Return the lines that set environment variables of a job: only settings of this package."""
    return [
        f"export {k}={shlex.quote(v)}"
        for k, v in os.environ.items()
        if k in ("MONARCH_NB_HOST_LOG", "MONARCH_NB_PRELOAD")
    ]


def _of(spec: HostSpec) -> str:
    return f"partition {spec.partition}" if spec.partition else "the largest partition"


def _minutes(seconds: float) -> int:
    return max(1, round(seconds / 60))


def _limit(text: str) -> float | None:
    """Return a time limit of Slurm in seconds: 30, 30:00, 2:00:00, 1-00:00:00; None for no limit.

    >>> _limit("1-02:00:00"), _limit("30:00"), _limit("infinite")
    (93600.0, 1800.0, None)
    """
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _when(text: str) -> float | None:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None
