"""Hosts obtained by the commands of a profile, for schedulers without an engine of their own.

Either a command for each host (`start`, with {host} and {script}), or a batch system's (`submit`, `look`,
`end`, with {id}): `submit` gets the job's script on its standard input and answers with a number; `look`
answers with text that `queued` and `granted` are looked for in; `find` answers with the number of a job whose
name is {request}. With neither, people start hosts by hand.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from monarch_nb._wire.invitation import Invitation
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.job.allocation import Allocation, records_directory
from monarch_nb.job.engines import batch_templates, shell
from monarch_nb.job.engines.base import Capabilities, Engine, EngineError, Look, NoAnswer, State, Usable
from monarch_nb.job.engines.batch_templates import TEMPLATES, value_of
from monarch_nb.job.engines.ssh import NamedHosts
from monarch_nb.job.spec import HostSpec

_ID = r"(\d+)"
_QUEUED = r"\b(PENDING|PEND|PD|Q|H|WAITING)\b"
_GRANTED = r"\bR(UNNING)?\b"
_NONE_FOUND = re.compile(r"not found|no .*jobs?\b|unknown job", re.IGNORECASE)


class Command(Engine):
    """The engine that runs the commands of a profile."""

    name = "command"
    can = Capabilities(queue=True)
    own_keys = (
        "start", "submit", "look", "end", "find", "id", "queued", "granted", "header", "each", "template",
    )  # fmt: skip

    def __init__(self) -> None:
        self._each = _Each()

    def usable(self, spec: HostSpec) -> Usable:
        for key in ("start", "submit", "look", "end", "find"):
            try:
                words = batch_templates.words(value_of(spec, key), key)
            except MeshUsageError as error:
                return Usable(str(error))
            if words and not spec.login and shutil.which(words[0]) is None:
                return Usable(
                    f"{key} = {value_of(spec, key)!r}: {words[0]} isn't installed here, or not on PATH"
                )
        return Usable()

    def check(self, spec: HostSpec) -> list[str]:
        template = spec.own_value("template")
        if template and template not in TEMPLATES:
            return [f"[command] template = {template!r} is unknown. Known: {', '.join(TEMPLATES)}"]
        if spec.own_value("start"):
            return self._each.check(spec)
        return batch_templates.wrong_settings(spec)

    def keys(self, spec: HostSpec) -> Collection[str]:
        if spec.own_value("start"):
            return self._each.keys(spec)
        if not value_of(spec, "submit"):
            return ("gpus",)
        return {"login", "python", "setup", *batch_templates.keys_handed_on(spec)}

    def names_hosts(self, spec: HostSpec) -> bool:
        return bool(spec.own_value("start")) or not value_of(spec, "submit")

    def finds(self, spec: HostSpec) -> bool:
        return self.names_hosts(spec) or bool(value_of(spec, "find"))

    def submit(self, allocation: Allocation, invitation: Invitation) -> Allocation:
        spec = allocation.spec
        if spec.own_value("start"):
            return self._each.submit(allocation, invitation)
        if not value_of(spec, "submit"):
            return self._write(allocation, invitation)
        if batch_templates.num_nodes(allocation) > 1 and not value_of(spec, "each"):
            raise EngineError(f"[command] --spares: {batch_templates.NEEDS_EACH}")
        allocation = replace(allocation, directory=shell.log_directory(spec.login))
        script = self.script(allocation).replace(_INVITATION, invitation.to_json())
        command = batch_templates.command(allocation, "submit")
        done = shell.run_at(spec.login, command, script)
        if done.code != 0:
            raise EngineError(f"{command[0]}: {done.words}")
        pattern = value_of(spec, "id") or _ID
        found = re.search(pattern, done.out, re.MULTILINE)
        if found is None:
            raise NoAnswer(
                f"{command[0]} has answered with no job's number: {done.words!r}; id = its pattern in "
                f"[.command], now {pattern!r}"
            )
        return replace(allocation, id=found[1] if found.groups() else found[0])

    def recalled(self, allocation: Allocation) -> Allocation:
        spec = allocation.spec
        if spec.own_value("start") or not value_of(spec, "find"):
            return allocation
        command = batch_templates.command(allocation, "find")
        done = shell.run_at(spec.login, command)
        number = done.out.split()[:1]
        if done.code != 0 and not number and not _NONE_FOUND.search(done.words):
            raise EngineError(f"{command[0]}: {done.words}")
        if not number:
            return allocation
        return replace(allocation, id=number[0], directory=shell.log_directory(spec.login))

    def _write(self, allocation: Allocation, invitation: Invitation) -> Allocation:
        """Write the invitation to a file, for users who start hosts by hand."""
        path = os.path.join(records_directory(), f"{allocation.mesh}.join")
        with suppress(FileNotFoundError):
            os.unlink(path)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "w") as file:
            file.write(invitation.to_json())
        return replace(allocation, directory=path)

    def script(self, allocation: Allocation) -> str:
        spec = allocation.spec
        if spec.own_value("start"):
            return self._each.script(allocation)
        return "\n".join(
            [
                "#!/bin/bash -l",
                *batch_templates.header(allocation),
                "umask 077",
                *_to_log(allocation),
                *(_on_each(spec) if value_of(spec, "each") else _on_first(spec)),
                "",
            ]
        )

    def look(self, allocation: Allocation) -> Look:
        spec = allocation.spec
        if spec.own_value("start"):
            return self._each.look(allocation)
        if not value_of(spec, "submit"):
            return Look(State.QUEUED, f"on each host: monarch-nb host --join {allocation.directory}")
        if not allocation.id:
            return Look(State.ENDED, "the batch system's answer was lost")
        done = shell.run_at(spec.login, batch_templates.command(allocation, "look"))
        for key, state, default in (("granted", State.GRANTED, _GRANTED), ("queued", State.QUEUED, _QUEUED)):
            found = re.search(value_of(spec, key) or default, done.out)
            if found:
                return Look(state, found[0])
        return Look(
            State.ENDED,
            done.words
            if done.out.strip() or done.err.strip()
            else "the batch system no longer knows this job",
        )

    def end_allocation(self, allocation: Allocation) -> None:
        spec = allocation.spec
        if spec.own_value("start"):
            self._each.end_allocation(allocation)
        elif value_of(spec, "submit"):
            if allocation.id:
                shell.run_at(spec.login, batch_templates.command(allocation, "end"))
                shell.run_at(spec.login, ["rm", "-f", _log_path(allocation)])
        elif allocation.directory:
            with suppress(FileNotFoundError):
                os.unlink(allocation.directory)

    def further(self, asked: Sequence[Allocation], num: int) -> HostSpec:
        has_each = bool(asked[0].spec.own_value("start"))
        return self._each.further(asked, num) if has_each else super().further(asked, num)

    def release(self, allocation: Allocation, nodes: Sequence[str]) -> Allocation:
        return self._each.release(allocation, nodes) if allocation.spec.own_value("start") else allocation

    def logs(self, allocation: Allocation) -> list[str]:
        if allocation.spec.own_value("start") or not allocation.id:
            return self._each.logs(allocation)
        return shell.last_words(allocation.spec.login, _log_path(allocation))


class _Each(NamedHosts):
    """The variant of the engine with a command for each host."""

    name = "command"

    def usable(self, spec: HostSpec) -> Usable:
        return Usable()

    def start_command(self, spec: HostSpec, place: int, machine: str) -> Sequence[str]:
        return self._with(
            spec.own_value("start"), machine, shell.host_script(spec, "--place", str(place), "--detach")
        )

    def end_command(self, spec: HostSpec, machine: str, script: str) -> Sequence[str]:
        return self._with(spec.own_value("start"), machine, f"sh -c {shlex.quote(script)}")

    def _with(self, template: str, machine: str, script: str) -> list[str]:
        """Return the words of a template with {host} and {script}, a shell command line, filled in. If the
        template doesn't contain {script}, it's appended.
        """
        words = shlex.split(template)
        found = [word.replace("{host}", machine).replace("{script}", script) for word in words]
        return found if "{script}" in template else [*found, *shlex.split(script)]


def _log_path(allocation: Allocation) -> str:
    """Return the path of the launchers' output file, on the machine where the job was submitted."""
    return f"{allocation.directory}/{allocation.request_name}.out"


def _to_log(allocation: Allocation) -> list[str]:
    """Return shell lines that write all output into a file, if the node has the directory, too."""
    path = shlex.quote(_log_path(allocation))
    return [f"if {{ : >>{path}; }} 2>/dev/null; then exec >>{path} 2>&1; fi"] if allocation.directory else []


def _on_first(spec: HostSpec) -> list[str]:
    """Return shell lines that run the launcher on the node where the job's script runs."""
    return [*spec.setup, f"exec {shell.launcher_command(spec)} <<'END'", _INVITATION, "END"]


def _on_each(spec: HostSpec) -> list[str]:
    """Return shell lines that run the launcher on every node; it reads the invitation from a file in the
    shared home.
    """
    script = shell.host_script(spec)
    return [
        'file="$(mktemp "$HOME/.monarch_nb.XXXXXXXX")" || exit 1',
        "trap 'rm -f \"$file\"' EXIT",
        "cat >\"$file\" <<'END'",
        _INVITATION,
        "END",
        f'{value_of(spec, "each")} bash -c {shlex.quote(script + " <$0")} "$file"',
    ]


_INVITATION = "<the invitation: a secret>"
