"""Runs a script on each process of a mesh, as torchrun would."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from monarch_nb._client import session as sessions
from monarch_nb._protocol.ranks import SetProcEnvironment
from monarch_nb._protocol.script import Script
from monarch_nb._rank.elastic import elastic_variables, own_device
from monarch_nb._rank.script import exit_message, run_program
from monarch_nb._rank.shell import is_plain_exit
from monarch_nb._transport import process_context
from monarch_nb.actor.actor_mesh import Actor
from monarch_nb.actor.context import context
from monarch_nb.actor.endpoint import endpoint
from monarch_nb.actor.handle import placement_of
from monarch_nb.exceptions import ScriptExit
from monarch_nb.spmd.environment import AddrType, host_and_port


class SPMDActor(Actor):
    """The actor that runs a script or a module on each process as torchrun would.

    Example:
        >>> spmd = procs.spawn("spmd", SPMDActor)                                     # doctest: +SKIP
        >>> addr, port = spmd.slice(gpus=0).get_host_port.call_one(None).get()        # doctest: +SKIP
        >>> spmd.main.call(addr, port, ["train.py", "--lr", "0.1"]).get()             # doctest: +SKIP
    """

    def __init__(self) -> None:
        # Of the mesh that it was spawned on: a call may concern a part of it.
        self._procs: tuple[int, ...] = placement_of(context().actor_instance.proc_mesh).procs

    @endpoint
    def get_host_port(self, use_ipaddr: AddrType | None = None) -> tuple[str, int]:
        """Return an address of this process' host, and a tcp port that is free there."""
        return host_and_port(use_ipaddr)

    @endpoint
    def setup_env(self, master_addr: str, master_port: int) -> None:
        """Set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and so on in this process, and in the process that
        replaces it after a heal.
        """
        self._set_up(master_addr, master_port)

    @endpoint
    def main(self, master_addr: str, master_port: int, script_args: Sequence[str]) -> bool:
        """Set the environment variables, and run `script_args` like `python` would: a script with its
        arguments, or `-m MODULE` with its arguments.

        Raises:
            ValueError: if `script_args` is empty.
            ScriptExit: if the script exits with a code other than 0; the actor stays alive, and may run it
                again.
        """
        is_module = bool(script_args) and script_args[0] == "-m"
        target, *rest = script_args[1:] if is_module else script_args or ("",)
        if not target:
            raise ValueError(
                'main needs a script, as in ["train.py", "--lr", "0.1"], or a module: ["-m", "train"]'
            )
        self._set_up(master_addr, master_port)
        script = Script(target, tuple(rest), is_module, workdir=os.environ.get("WORKSPACE_DIR", ""))
        error = run_program(script, {}, lambda: None)
        if isinstance(error, SystemExit):
            if not is_plain_exit(error):
                raise ScriptExit(exit_message(error.code))
        elif error is not None:
            raise error
        return True

    @endpoint
    def run_command(self, entrypoint: str, args: Sequence[str], env: Mapping[str, str]) -> bool:
        """Run a program, such as torchrun itself, with `env` added to this process' environment.

        Raises:
            subprocess.CalledProcessError: if it fails.
        """
        subprocess.run([entrypoint, *args], check=True, env={**os.environ, **env})
        return True

    def _set_up(self, master_addr: str, master_port: int) -> None:
        me = process_context.transport().me
        rank = self._procs.index(me)
        variables = {**elastic_variables(self._procs, rank, master_addr, master_port), **own_device()}
        os.environ.update(variables)
        sessions.current().tell(SetProcEnvironment({me: variables}))
