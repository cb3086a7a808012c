"""Hosts reached by OpenSSH: the user's configuration, agents, jump hosts and hardware keys work as in a
terminal.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from monarch_nb._client.ssh import SSH_FAILED, Done, ssh_command, ssh_trouble
from monarch_nb._host.launcher import STARTED
from monarch_nb._wire.invitation import Invitation
from monarch_nb.job.allocation import Allocation
from monarch_nb.job.engines import shell
from monarch_nb.job.engines.base import Capabilities, Engine, EngineError, Look, State, Usable
from monarch_nb.job.spec import HostRange, HostSpec

AT_ONCE = 16
JOIN_S = 90.0
_PID = re.compile(r"\(pid (\d+)\)")


class NamedHosts(Engine):
    """The base of engines whose hosts are known by name: a command for each starts the launcher there, with
    the invitation on its standard input.
    """

    can = Capabilities(names=True)

    def __init__(self) -> None:
        self._messages: list[str] = []

    def check(self, spec: HostSpec) -> list[str]:
        if not spec.machines:
            return [
                (
                    f'{self.name} needs the names of hosts: hosts = ["a", "b[1-4]"] in the profile, or '
                    "--hosts a,b"
                )
            ]
        num = len(spec.machines)
        if spec.wanted.least > num:
            return [
                (
                    f"{spec.wanted.least} hosts were asked for, and the profile names {num}: "
                    f"{', '.join(spec.machines[:8])}"
                )
            ]
        return []

    def submit(self, allocation: Allocation, invitation: Invitation) -> Allocation:
        spec, text = allocation.spec, invitation.to_json()
        machines = list(enumerate(_chosen(allocation)))
        done = self._on_all(
            machines, lambda place, machine: shell.run(self.start_command(spec, place, machine), text, JOIN_S)
        )
        self._messages = [
            self.trouble(m, d, spec) for (_, m), d in zip(machines, done, strict=True) if STARTED not in d.out
        ]
        parts = tuple(f"{m} {_pid(d)}" for (_, m), d in zip(machines, done, strict=True) if STARTED in d.out)
        started = replace(allocation, parts=parts)
        if len(parts) < spec.wanted.least:
            self.end_allocation(started)
            raise EngineError(
                "\n".join([f"{len(parts)} of {len(machines)} hosts have come:", *self._messages])
            )
        return started

    def start_command(self, spec: HostSpec, place: int, machine: str) -> Sequence[str]:
        """Return the command that runs the launcher on a host."""
        raise NotImplementedError

    def end_command(self, spec: HostSpec, machine: str, script: str) -> Sequence[str]:
        """Return the command that runs a shell command line on a host."""
        raise NotImplementedError

    def trouble(self, machine: str, done: Done, spec: HostSpec) -> str:
        """Return why a host hasn't joined."""
        return f"host {shell.launcher_trouble(machine, done, spec)}"

    def further(self, asked: Sequence[Allocation], num: int) -> HostSpec:
        used = {part.split()[0] for each in asked for part in each.parts}
        named = dict.fromkeys(m for each in asked for m in each.spec.machines)
        free = tuple(m for m in named if m not in used)
        if num > len(free):
            raise EngineError(
                f"{num} more hosts were asked for, and of those that are named {len(free)} are free"
                f"{': ' + ', '.join(free[:8]) if free else ''}. Name others: --hosts a,b"
            )
        return replace(asked[0].spec, machines=free, hosts=HostRange(num, num))

    def release(self, allocation: Allocation, nodes: Sequence[str]) -> Allocation:
        return replace(allocation, parts=tuple(p for p in allocation.parts if p.split()[0] not in nodes))

    def look(self, allocation: Allocation) -> Look:
        """Return all hosts as granted: this kind of engine grants hosts at once, or not at all."""
        return Look(State.GRANTED, nodes=tuple(part.split()[0] for part in allocation.parts))

    def end_allocation(self, allocation: Allocation) -> None:
        """End host processes that haven't ended together with their mesh."""
        parts = [(i, part) for i, part in enumerate(allocation.parts)]

        def end(_place: int, part: str) -> Done:
            machine, pid = part.split()
            script = f'[ "$(cat /proc/{pid}/comm 2>/dev/null)" = mnb-host ] && kill {pid}; true'
            return shell.run(self.end_command(allocation.spec, machine, script))

        self._on_all(parts, end)

    def logs(self, allocation: Allocation) -> list[str]:
        return list(self._messages)

    def script(self, allocation: Allocation) -> str:
        spec = allocation.spec
        return "\n".join(" ".join(self.start_command(spec, i, m)) for i, m in enumerate(_chosen(allocation)))

    def _on_all(self, each: Sequence[tuple[int, str]], what: Callable[[int, str], Done]) -> list[Done]:
        def guarded(one: tuple[int, str]) -> Done:
            try:
                return what(*one)
            except EngineError as error:
                return Done(1, "", str(error))

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(guarded, each))


def _chosen(allocation: Allocation) -> tuple[str, ...]:
    """Return the machines to use: the wanted number, and spares."""
    spec = allocation.spec
    return spec.machines[: spec.wanted.most + allocation.plan.num_spares]


def _pid(done: Done) -> str:
    found = _PID.search(done.out)
    return found[1] if found else "0"


class SSH(NamedHosts):
    """The engine of OpenSSH."""

    name = "ssh"
    own_keys = ("config",)

    def usable(self, spec: HostSpec) -> Usable:
        return (
            Usable()
            if shutil.which("ssh")
            else Usable("there is no ssh here: apt-get install openssh-client")
        )

    def start_command(self, spec: HostSpec, place: int, machine: str) -> Sequence[str]:
        return [
            *ssh_command(machine, spec.own_value("config")),
            shell.host_script(spec, "--place", str(place), "--detach"),
        ]

    def end_command(self, spec: HostSpec, machine: str, script: str) -> Sequence[str]:
        return [*ssh_command(machine, spec.own_value("config")), script]

    def trouble(self, machine: str, done: Done, spec: HostSpec) -> str:
        if done.code == SSH_FAILED:
            return f"host {ssh_trouble(machine, done, spec.own_value('config'))}"
        return super().trouble(machine, done, spec)
