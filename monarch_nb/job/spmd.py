"""torchrun's command lines as jobs: `serve` obtains the hosts, `run_spmd` runs the script, repeatedly on the
same warm processes.

    >>> from monarch_nb.job.spmd import serve
    >>> job = serve(["torchrun", "--nproc-per-node=4", "train.py", "--lr", "0.1"])   # doctest: +SKIP
    >>> job.run_spmd()                                                               # doctest: +SKIP
    >>> job.kill()                                                                   # doctest: +SKIP
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from typing import Any

from monarch_nb._torchrun import REFUSED
from monarch_nb.actor.host_mesh import check_env
from monarch_nb.actor.proc_mesh import ProcMesh
from monarch_nb.exceptions import ActorError, MeshError, MeshUsageError, SupervisionError
from monarch_nb.job.base import JobState, JobTrait
from monarch_nb.job.engine_job import SlurmJob, SSHJob
from monarch_nb.job.process import ProcessJob
from monarch_nb.spmd import SPMDActor

_RUNNERS = ("torchrun", "torch.distributed.run")
_PYTHONS = ("python", "python3")
_OF_TORCHX = frozenset({"rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "tee", "role"})
"""What torchx writes into an AppDef by itself: nobody has typed it, so nobody is told that it's moot."""
_STOP_S = 30.0


@dataclass(frozen=True)
class Command:
    """The parsed command line of torchrun, or of plain Python.

    Attributes:
        script_args: the script, or `-m` and a module, with its arguments.
        ranks_per_host: number of processes, or `gpu`, `cpu` or `auto`.
        max_restarts: how often the script is run again if it fails.
    """

    script_args: tuple[str, ...]
    ranks_per_host: str = "1"
    num_hosts: int = 1
    max_restarts: int = 0

    @classmethod
    def parse(cls, words: Sequence[str], *, passed_over: frozenset[str] = frozenset()) -> Command:
        """Parse a command line: `torchrun ...`, `python -m torch.distributed.run ...` or `python train.py`.

        Args:
            passed_over: flags that mean nothing here, and yet aren't refused.

        Raises:
            MeshUsageError: naming what can't be read, and each flag of torchrun's that means nothing here.

        >>> Command.parse(["python", "train.py", "--lr", "0.1"])
        Command(script_args=('train.py', '--lr', '0.1'), ranks_per_host='1', num_hosts=1, max_restarts=0)
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
        found = _read_torchrun(rest, REFUSED.keys() - passed_over)
        module = ("-m",) if found.module else ()
        script_args = (*module, found.training_script, *found.training_script_args)
        num_hosts, restarts = _num_hosts(str(found.nnodes)), _num_restarts(found.max_restarts)
        return cls(script_args, str(found.nproc_per_node), num_hosts, restarts)

    def words(self) -> list[str]:
        """Return a command line of torchrun that says the same."""
        return [
            "torchrun",
            f"--nnodes={self.num_hosts}",
            f"--nproc-per-node={self.ranks_per_host}",
            f"--max-restarts={self.max_restarts}",
            *self.script_args,
        ]


def _script_of(words: Sequence[str]) -> tuple[str, ...]:
    if not words or (words[0] == "-m" and len(words) == 1):
        raise MeshUsageError('serve: no script is named; as in ["python", "train.py"]')
    if words[0].startswith("-") and words[0] != "-m":
        raise MeshUsageError(
            f"serve: {words[0]} means nothing here: a run takes interpreters that live already. Leave it out"
        )
    return tuple(words)


def _read_torchrun(words: Sequence[str], refused: Collection[str]) -> Any:
    from torch.distributed.run import get_args_parser

    parser, errors, untyped = get_args_parser(), io.StringIO(), object()
    # What stands there already gets no default: so a flag that was typed is known from one that wasn't.
    found = argparse.Namespace(**{name.replace("-", "_"): untyped for name in refused})
    try:
        with redirect_stderr(errors):
            parser.parse_args(words, found)
    except SystemExit:
        said = (errors.getvalue().strip().splitlines() or ["no script"])[-1]
        raise MeshUsageError(f"serve: {said.removeprefix(f'{parser.prog}: error: ')}") from None
    typed = [name for name in refused if getattr(found, name.replace("-", "_")) is not untyped]
    if typed:
        raise MeshUsageError("\n".join(map(_refusal, sorted(typed))))
    return found


def _refusal(name: str) -> str:
    return f"serve: --{name} means nothing here: {REFUSED[name].why}. {REFUSED[name].called}"


def _num_restarts(found: int) -> int:
    if found < 0:
        raise MeshUsageError(f"serve: --max-restarts is how often it's run again: 0, 1, 2 ...; not {found}")
    return found


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

        If it fails, it's run again as often as `--max-restarts` says, on other processes, as by torchrun.

        Raises:
            ActorError: if it raises on any rank, or exits with another code than 0 (a `ScriptExit`).
            SupervisionError: if a process dies; the next run has others.
        """
        for _ in range(self._parsed.max_restarts):
            try:
                return self._run_once()
            except (ActorError, SupervisionError) as error:
                print(f"{error}\nit is run again", file=sys.stderr)
                self._forget()
        return self._run_once()

    def _run_once(self) -> None:
        try:
            runner = self._ready()
            first = runner.flatten("rank").slice(rank=0)
            address, port = first.get_host_port.call_one(None).get()
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

    It takes torchrun's `--nnodes`, `--nproc-per-node`, `--max-restarts`, `--standalone`, `--run-path` and
    `-m`. What else torchrun takes means nothing here, and is refused with what to do instead.

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
    parsed = Command.parse([*entry, *role.args], passed_over=_OF_TORCHX)
    return parsed.words(), dict(role.env or {})
