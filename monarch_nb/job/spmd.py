"""torchrun's command lines as jobs: `serve` obtains the hosts, `run_spmd` runs the script, repeatedly on the
same warm processes.

    >>> from monarch_nb.job.spmd import serve
    >>> job = serve(["torchrun", "--nproc-per-node=4", "train.py", "--lr", "0.1"])   # doctest: +SKIP
    >>> job.run_spmd()                                                               # doctest: +SKIP
    >>> job.kill()                                                                   # doctest: +SKIP
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from typing import Any

from monarch_nb.actor.host_mesh import check_env
from monarch_nb.actor.proc_mesh import ProcMesh
from monarch_nb.exceptions import MeshError, MeshUsageError, SupervisionError
from monarch_nb.job.base import JobState, JobTrait
from monarch_nb.job.engine_job import SlurmJob, SSHJob
from monarch_nb.job.process import ProcessJob
from monarch_nb.spmd import SPMDActor

_RUNNERS = ("torchrun", "torch.distributed.run")
_PYTHONS = ("python", "python3")
_STOP_S = 30.0


@dataclass(frozen=True)
class Command:
    """The parsed command line of torchrun, or of plain Python.

    Attributes:
        script_args: the script, or `-m` and a module, with its arguments.
        ranks_per_host: number of processes, or `gpu`, `cpu` or `auto`.
    """

    script_args: tuple[str, ...]
    ranks_per_host: str = "1"
    num_hosts: int = 1

    @classmethod
    def parse(cls, words: Sequence[str]) -> Command:
        """Parse a command line: `torchrun ...`, `python -m torch.distributed.run ...` or `python train.py`.

        Raises:
            MeshUsageError: naming what can't be read.

        >>> Command.parse(["python", "train.py", "--lr", "0.1"])
        Command(script_args=('train.py', '--lr', '0.1'), ranks_per_host='1', num_hosts=1)
        """
        program, *rest = words or ("",)
        if program in _PYTHONS:
            if not (rest[:1] == ["-m"] and rest[1:2] and rest[1] in _RUNNERS):
                return cls(_script_of(rest))
            program, rest = rest[1], rest[2:]
        if program not in _RUNNERS:
            raise MeshUsageError(
                'serve takes a command line of torchrun as a list: ["torchrun", "--nproc-per-node=4", '
                f'"train.py"]; not {list(words)!r}'
            )
        found = _read_torchrun(rest)
        module = ("-m",) if found.module else ()
        script_args = (*module, found.training_script, *found.training_script_args)
        return cls(script_args, str(found.nproc_per_node), _num_hosts(str(found.nnodes)))


def _script_of(words: Sequence[str]) -> tuple[str, ...]:
    if not words or (words[0] == "-m" and len(words) == 1):
        raise MeshUsageError('serve: no script is named; as in ["python", "train.py"]')
    return tuple(words)


def _read_torchrun(words: Sequence[str]) -> Any:
    from torch.distributed.run import get_args_parser

    errors = io.StringIO()
    try:
        with redirect_stderr(errors):
            return get_args_parser().parse_args(words)
    except SystemExit:
        raise MeshUsageError(
            f"serve: {(errors.getvalue().strip().splitlines() or ['no script'])[-1]}"
        ) from None


def _num_hosts(nnodes: str) -> int:
    least, _, most = nnodes.partition(":")
    if not least.isdigit() or int(least) < 1 or most not in ("", least):
        raise MeshUsageError(f"serve: --nnodes is one number of hosts, such as 2; not {nnodes!r}")
    return int(least)


class SPMDJob(JobTrait):
    """A job that runs a command line of torchrun on its hosts.

    Args:
        command: the words of the command line.
        scheduler: where the hosts come from: `local_cwd`, `slurm` or `ssh`.
        scheduler_cfg: arguments of `SlurmJob` or `SSHJob`.
        env: environment variables of the script's processes.

    Raises:
        MeshUsageError: naming what can't be read in the command or isn't a scheduler.
    """

    def __init__(
        self,
        command: Sequence[str],
        scheduler: str = "local_cwd",
        scheduler_cfg: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.command = tuple(command)
        self.scheduler = scheduler
        self.scheduler_cfg = dict(scheduler_cfg or {})
        self.env = check_env(env or {})
        self._parsed = Command.parse(self.command)
        self._hosts = _hosts_of(scheduler, self._parsed.num_hosts, self.scheduler_cfg)
        self._procs: ProcMesh | None = None
        self._runner: Any = None

    def run_spmd(self) -> None:
        """Run the script on all hosts, and wait for it. Its output is shown; the processes stay warm.

        Raises:
            ActorError: if it raises on any rank, or exits with another code than 0 (a `ScriptExit`).
            SupervisionError: if a process dies; the next run has others.
        """
        runner = self._ready()
        first = runner.flatten("rank").slice(rank=0)
        address, port = first.get_host_port.call_one(None).get()
        try:
            runner.main.call(address, port, list(self._parsed.script_args)).get()
        except SupervisionError:
            self._forget()
            raise

    def _ready(self) -> Any:
        if self._runner is None:
            # Not dimension "gpus": as under torchrun each rank sees all of them, and chooses by LOCAL_RANK.
            per_host = {"procs": _ranks_per_host(self._parsed.ranks_per_host)}
            env = {"WORKSPACE_DIR": os.getcwd(), **self.env}
            self._procs = self.state().hosts.spawn_procs(per_host, env=env)
            self._runner = self._procs.spawn("spmd", SPMDActor)
        return self._runner

    def _forget(self) -> None:
        procs, self._procs, self._runner = self._procs, None, None
        if procs is not None:
            with suppress(MeshError):  # its hosts may have ended
                procs.stop().get(_STOP_S)

    def _create(self) -> None:
        self._hosts.apply()

    def _state(self) -> JobState:
        return self._hosts.state()

    def _kill(self) -> None:
        self._forget()
        self._hosts.kill()


def _ranks_per_host(wanted: str) -> int:
    from torch.distributed.run import determine_local_world_size

    try:
        return int(determine_local_world_size(wanted))
    except ValueError as error:
        raise MeshUsageError(f"serve: --nproc-per-node {wanted}: {error}") from None


def _hosts_of(scheduler: str, num: int, options: Mapping[str, Any]) -> JobTrait:
    make: dict[str, Callable[..., JobTrait]] = {
        "local_cwd": lambda: ProcessJob({"hosts": num}, **options),
        "slurm": lambda: SlurmJob({"hosts": num}, **options),
        "ssh": lambda: SSHJob({"hosts": options.get("hosts", ())}, **_without_hosts(options)),
    }
    if scheduler not in make:
        raise MeshUsageError(f"serve: scheduler is one of {', '.join(make)}; not {scheduler!r}")
    try:
        return make[scheduler]()
    except TypeError as error:
        raise MeshUsageError(f"serve: scheduler_cfg of {scheduler}: {error}") from None


def _without_hosts(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "hosts"}


def serve(
    appdef: Any,
    scheduler: str = "local_cwd",
    scheduler_cfg: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> SPMDJob:
    """Obtain the hosts that a command line of torchrun requests.

    Args:
        appdef: the command line as a list of words; or torchx' `AppDef` with one role, whose `args` are such
            words.
        scheduler: where hosts come from: `local_cwd` (processes of this machine), `slurm` or `ssh`.
        scheduler_cfg: arguments of `SlurmJob`; for ssh `{"hosts": ["node1", "node2"]}` and those of `SSHJob`.
        env: environment variables of the script's processes.

    Raises:
        MeshUsageError: naming what can't be read.
        MeshError: if hosts can't be had.

    Example:
        >>> job = serve(["torchrun", "--nnodes=2", "--nproc-per-node=8", "-m", "train"],
        ...             scheduler="slurm", scheduler_cfg={"partition": "gpu"})   # doctest: +SKIP
        >>> job.run_spmd()                                                        # doctest: +SKIP
    """
    words, given = (appdef, {}) if isinstance(appdef, list | tuple) else _of_appdef(appdef)
    job = SPMDJob(words, scheduler, scheduler_cfg, {**given, **(env or {})})
    job.apply()
    return job


def _of_appdef(appdef: Any) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment of an AppDef's role; torchx itself isn't needed."""
    roles = getattr(appdef, "roles", None)
    if not isinstance(roles, list) or len(roles) != 1:
        raise MeshUsageError(
            'serve takes a list of words such as ["torchrun", "train.py"], or an AppDef with one role; '
            f"not {appdef!r}"
        )
    role = roles[0]
    entry = [role.entrypoint] if role.entrypoint in (*_RUNNERS, *_PYTHONS) else []
    return [*entry, *role.args], dict(role.env or {})
