"""Hosts obtained by the commands of a profile, for schedulers without an engine of their own.

Either a command for each host (`start`, with {host} and {script}), or a batch system's (`submit`, `look`,
`end`, with {id}): `submit` gets the job's script on its standard input and answers with a number; `look`
answers with text that `queued` and `granted` are looked for in. With neither, people start hosts by hand.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from monarch_nb._wire.invitation import Invitation
from monarch_nb.job.allocation import Allocation, records_directory
from monarch_nb.job.engines import shell
from monarch_nb.job.engines.base import Capabilities, Engine, EngineError, Look, State, Usable
from monarch_nb.job.engines.ssh import NamedHosts
from monarch_nb.job.spec import HostSpec

_ID = r"(\d+)"
_EACH_LSF = """blaunch -z "$(printf '%s\\n' $LSB_HOSTS | sort -u | tr '\\n' ' ')\""""
TEMPLATES: dict[str, dict[str, str]] = {
    "pbs": {
        "submit": "qsub",
        "look": "qstat -f {id}",
        "end": "qdel {id}",
        "id": r"^(\S+)\s*$",
        "queued": r"job_state = [QHWT]\b",
        "granted": r"job_state = [RE]\b",
        "header": "#PBS -N {name}\\n#PBS -l select={hosts}\\n#PBS -l place=scatter\\n#PBS -r n",
        "each": "pbsdsh --",
    },
    "lsf": {
        "submit": "bsub",
        "look": "bjobs -noheader -o stat {id}",
        "end": "bkill {id}",
        "id": r"Job <(\d+)>",
        "queued": r"\b(PEND|PSUSP)\b",
        "granted": r"\b(RUN|USUSP|SSUSP)\b",
        "header": "#BSUB -J {name}\\n#BSUB -n {hosts}\\n#BSUB -R span[ptile=1]",
        "each": _EACH_LSF,
    },
}
"""Defaults of `template =`; keys of the profile take precedence. `each` runs a command on every node of a
job. Tested with answers in the form of the manuals, never by a real scheduler.
"""


class Command(Engine):
    """The engine that runs the commands of a profile."""

    name = "command"
    can = Capabilities(queue=True)
    own_keys = ("start", "submit", "look", "end", "id", "queued", "granted", "header", "each", "template")

    def __init__(self) -> None:
        self._each = _Each()

    def usable(self, spec: HostSpec) -> Usable:
        for key in ("start", "submit", "look", "end"):
            words = shlex.split(_value(spec, key))
            if words and not spec.login and shutil.which(words[0]) is None:
                return Usable(
                    f"{key} = {_value(spec, key)!r}: {words[0]} isn't installed here, or not on PATH"
                )
        return Usable()

    def check(self, spec: HostSpec) -> list[str]:
        template = spec.own_value("template")
        if template and template not in TEMPLATES:
            return [f"[command] template = {template!r} is unknown. Known: {', '.join(TEMPLATES)}"]
        if spec.own_value("start"):
            return self._each.check(spec)
        batch = [key for key in ("submit", "look", "end") if _value(spec, key)]
        if batch and len(batch) < 3:
            missing = next(key for key in ("submit", "look", "end") if key not in batch)
            return [
                (
                    f"[command] has {' and '.join(batch)}, and no {missing}: a batch system needs submit, "
                    "look and end"
                )
            ]
        return []

    def submit(self, allocation: Allocation, invitation: Invitation) -> Allocation:
        spec = allocation.spec
        if spec.own_value("start"):
            return self._each.submit(allocation, invitation)
        if not _value(spec, "submit"):
            return self._write(allocation, invitation)
        script = self.script(allocation).replace(_INVITATION, invitation.to_json())
        done = shell.run_at(spec.login, shlex.split(_value(spec, "submit")), script)
        found = re.search(_value(spec, "id") or _ID, done.out, re.MULTILINE)
        if done.code != 0 or found is None:
            raise EngineError(
                f"{spec.own_value('submit')}: {done.words}"
                + ("" if found or done.code else f" has no job's number; id = its pattern, now {_ID!r}")
            )
        return replace(allocation, id=found[1] if found.groups() else found[0])

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
        header = (
            _value(spec, "header")
            .replace("{hosts}", str(spec.wanted.most))
            .replace("{name}", allocation.mesh)
        )
        lines = [line for line in header.split("\\n") if line]
        return "\n".join(
            [
                "#!/bin/bash -l",
                *lines,
                "umask 077",
                *(_on_each(spec) if _value(spec, "each") else _on_first(spec)),
                "",
            ]
        )

    def look(self, allocation: Allocation) -> Look:
        spec = allocation.spec
        if spec.own_value("start"):
            return self._each.look(allocation)
        if not _value(spec, "submit"):
            return Look(State.QUEUED, f"on each host: monarch-nb host --join {allocation.directory}")
        done = shell.run_at(spec.login, _filled(_value(spec, "look"), allocation.id))
        for key, state, default in (
            ("granted", State.GRANTED, r"\bR(UNNING)?\b"),
            ("queued", State.QUEUED, r"\b(PENDING|PEND|PD|Q|H|WAITING)\b"),
        ):
            found = re.search(_value(spec, key) or default, done.out)
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
        elif allocation.id:
            shell.run_at(spec.login, _filled(_value(spec, "end"), allocation.id))
        elif allocation.directory:
            with suppress(FileNotFoundError):
                os.unlink(allocation.directory)

    def further(self, asked: Sequence[Allocation], num: int) -> HostSpec:
        has_each = bool(asked[0].spec.own_value("start"))
        return self._each.further(asked, num) if has_each else super().further(asked, num)

    def release(self, allocation: Allocation, nodes: Sequence[str]) -> Allocation:
        return self._each.release(allocation, nodes) if allocation.spec.own_value("start") else allocation

    def logs(self, allocation: Allocation) -> list[str]:
        return self._each.logs(allocation)


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


def _value(spec: HostSpec, key: str) -> str:
    """Return a setting of the profile, or of the profile's template."""
    return spec.own_value(key) or TEMPLATES.get(spec.own_value("template"), {}).get(key, "")


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
        f'{_value(spec, "each")} bash -c {shlex.quote(script + " <$0")} "$file"',
    ]


def _filled(template: str, number: str) -> list[str]:
    return [word.replace("{id}", number) for word in shlex.split(template)]


_INVITATION = "<the invitation: a secret>"
