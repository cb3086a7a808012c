"""Runs programs that aren't Python functions on the hosts of a job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monarch_nb.actor.actor_mesh import Actor
from monarch_nb.actor.context import context
from monarch_nb.actor.endpoint import endpoint
from monarch_nb.actor.future import Future
from monarch_nb.actor.host_mesh import HostMesh
from monarch_nb.rdma.local_future import LocalFuture

SUBDIR = "$SUBDIR"


@dataclass(frozen=True)
class Outcome:
    """The result of a command: its exit code, and its output, unless that went into files."""

    exit_code: int
    stdout: str = ""
    stderr: str = ""


def rank_variables() -> dict[str, str]:
    """Return the running actor's coordinates as environment variables: MONARCH_RANK_gpus, MONARCH_SIZE_gpus
    ...
    """
    point = context().actor_instance.rank
    sizes = dict(zip(point.extent.labels, point.extent.sizes, strict=True))
    return {f"MONARCH_RANK_{k}": str(v) for k, v in point.items()} | {
        f"MONARCH_SIZE_{k}": str(v) for k, v in sizes.items()
    }


class CommandActor(Actor):
    """The actor that runs programs on its process' host."""

    @endpoint
    def run(
        self,
        cmd: Sequence[str],
        env: Mapping[str, str],
        workdir: str | None,
        client_cwd: str,
        output_dir: str | None,
    ) -> Outcome:
        """Run a command and wait for it."""
        directory = workdir or (client_cwd if os.path.isdir(client_cwd) else None)
        variables = {**os.environ, **rank_variables(), **env}
        if output_dir is None:
            done = subprocess.run(
                cmd,
                cwd=directory,
                env=variables,
                capture_output=True,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
            )
            return Outcome(done.returncode, done.stdout, done.stderr)
        place = output_dir.replace(
            SUBDIR, "_".join(f"{k}_{v}" for k, v in context().actor_instance.rank.items())
        )
        os.makedirs(place, exist_ok=True)
        with (
            open(os.path.join(place, "stdout.txt"), "wb") as out,
            open(os.path.join(place, "stderr.txt"), "wb") as err,
        ):
            return Outcome(
                subprocess.run(
                    cmd, cwd=directory, env=variables, stdout=out, stderr=err, stdin=subprocess.DEVNULL
                ).returncode
            )


def exec_command(
    host_mesh: HostMesh,
    cmd: Sequence[str],
    env: Mapping[str, str] | None = None,
    workdir: str | None = None,
    output_dir: str | None = None,
    rank: int | None = None,
    point: Mapping[str, int] | None = None,
    per_host: Mapping[str, int] | None = None,
) -> Future[int]:
    """Run a command on hosts, and write its output here. It continues if nobody waits for it.

    Args:
        cmd: the program and its arguments; a script (`train.py`) or a module (`-m train`) is run by the
            hosts' Python.
        env: environment variables besides those that say where it runs: MONARCH_RANK_hosts,
            MONARCH_SIZE_hosts ...
        workdir: by default this program's own directory, where there is one of that name.
        output_dir: directory on the hosts that gets stdout.txt and stderr.txt; `$SUBDIR` in it stands for
            `hosts_0` and so on.
        rank: run it on one host only, by its number; `point`: by its coordinates.
        per_host: how often on each host, as in `{"gpus": 4}`.

    Returns:
        A future of the largest exit code.

    Example:
        >>> exec_command(job.state().hosts, ["nvidia-smi", "-L"]).get()  # doctest: +SKIP
        0

    Raises:
        ValueError: for no command, or both `rank` and `point`.
    """
    if isinstance(cmd, str) or not cmd or not all(isinstance(word, str) for word in cmd):
        raise ValueError(
            f'exec_command takes a command as a list of words, as in ["nvidia-smi", "-L"]; not {cmd!r}'
        )
    if rank is not None and point is not None:
        raise ValueError(f"give rank={rank} or point={dict(point)}, not both")
    hosts = host_mesh
    if point is not None:
        hosts = host_mesh.slice(**point)
    elif rank is not None:
        hosts = host_mesh.flatten("rank").slice(rank=rank)
    words = [sys.executable, *cmd] if cmd[0].endswith(".py") or cmd[0] == "-m" else list(cmd)
    procs = hosts.spawn_procs(per_host, name="command")
    answer = procs.spawn("command", CommandActor).run.call(
        words, dict(env or {}), workdir, os.getcwd(), output_dir
    )

    def finish() -> int:
        try:
            outcomes = list(answer.get().values())
        finally:
            procs.stop().get()
        for outcome in outcomes:
            print(outcome.stdout, end="", flush=True)
            print(outcome.stderr, end="", file=sys.stderr, flush=True)
        return max(abs(outcome.exit_code) for outcome in outcomes)

    return LocalFuture.of(finish)
