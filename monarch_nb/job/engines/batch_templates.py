"""Batch systems that are known by their commands, and how a request is filled into these.

A field is `{gpus}`; `{gpus|:ngpus=}` is its value after a text, and nothing if nothing was asked for. A line
of the script's header is left out if one of its plain fields has no value.
"""

from __future__ import annotations

import re
import shlex

from monarch_nb.exceptions import MeshUsageError
from monarch_nb.job.allocation import Allocation
from monarch_nb.job.spec import HostSpec, nearest

_EACH_LSF = """blaunch -z "$(printf '%s\\n' $LSB_HOSTS | sort -u | tr '\\n' ' ')\""""
_HEADER_PBS = (
    "#PBS -N {request}",
    "#PBS -l select={hosts}{gpus|:ngpus=}",
    "#PBS -l place=scatter",
    "#PBS -l walltime={time}",
    "#PBS -q {queue}",
    "#PBS -A {account}",
    "#PBS -r n",
)
_HEADER_LSF = (
    "#BSUB -J {request}",
    "#BSUB -n {hosts}",
    "#BSUB -R span[ptile=1]",
    "#BSUB -gpu num={gpus}",
    "#BSUB -W {minutes}",
    "#BSUB -q {queue}",
    "#BSUB -P {account}",
)
TEMPLATES: dict[str, dict[str, str]] = {
    "pbs": {
        "submit": "qsub",
        "look": "qstat -f {id}",
        "end": "qdel {id}",
        "find": "qselect -N {request}",
        "id": r"^(\S+)\s*$",
        "queued": r"job_state = [QHWT]\b",
        "granted": r"job_state = [RE]\b",
        "header": "\\n".join(_HEADER_PBS),
        "each": "pbsdsh --",
    },
    "lsf": {
        "submit": "bsub",
        "look": "bjobs -noheader -o stat {id}",
        "end": "bkill {id}",
        "find": "bjobs -noheader -o jobid -J {request}",
        "id": r"Job <(\d+)>",
        "queued": r"\b(PEND|PSUSP)\b",
        "granted": r"\b(RUN|USUSP|SSUSP)\b",
        "header": "\\n".join(_HEADER_LSF),
        "each": _EACH_LSF,
    },
}
"""Defaults of `template =`; keys of the profile take precedence. `each` runs a command on every node of a
job, `find` prints the number of a job by its name. Tested with answers in the form of the manuals, never by a
real scheduler.
"""

FIELDS = ("hosts", "name", "request", "gpus", "time", "minutes", "queue", "account")
PATTERNS = ("id", "queued", "granted")
_KEYS = {"gpus": "gpus", "time": "time", "minutes": "time", "queue": "partition", "account": "account"}
"""Keys of a profile, by the field that hands them on."""
_FIELD = re.compile(r"\{(\w+)(?:\|([^{}]*))?\}")


def value_of(spec: HostSpec, key: str) -> str:
    """Return a setting of the profile, or of the profile's template."""
    return spec.own_value(key) or TEMPLATES.get(spec.own_value("template"), {}).get(key, "")


def wrong_settings(spec: HostSpec) -> list[str]:
    """Return the errors of a profile for a batch system."""
    batch = [key for key in ("submit", "look", "end") if value_of(spec, key)]
    if not batch:
        return []
    if len(batch) < 3:
        missing = next(key for key in ("submit", "look", "end") if key not in batch)
        return [
            f"[command] has {' and '.join(batch)}, and no {missing}: a batch system needs submit, look and "
            "end"
        ]
    wrong = [_wrong_pattern(spec, key) for key in PATTERNS] + [_wrong_field(spec, "header")]
    found = [text for text in [*wrong, _wrong_field(spec, "submit")] if text]
    if spec.wanted.most > 1 and not value_of(spec, "each"):
        found.append(f"{spec.wanted} hosts were asked for: {NEEDS_EACH}")
    return found


NEEDS_EACH = (
    "a job's script runs on its first node only. What runs a command on all of them is each = in "
    '[.command], as in each = "srun"; without it there is one host: --hosts 1'
)


def _wrong_pattern(spec: HostSpec, key: str) -> str:
    try:
        re.compile(value_of(spec, key))
    except re.error as error:
        return f"[command] {key} = {value_of(spec, key)!r} is no regular expression: {error}"
    return ""


def _wrong_field(spec: HostSpec, key: str) -> str:
    for name, _ in _FIELD.findall(value_of(spec, key)):
        if name not in FIELDS:
            return (
                f"[command] {key} has an unknown field {{{name}}}.{nearest(name, FIELDS)} Known: "
                f"{', '.join(FIELDS)}"
            )
    return ""


def keys_handed_on(spec: HostSpec) -> set[str]:
    """Return the keys of a profile that the batch system is told."""
    fields = _FIELD.findall(value_of(spec, "header") + value_of(spec, "submit"))
    return {_KEYS[name] for name, _ in fields if name in _KEYS}


def num_nodes(allocation: Allocation) -> int:
    """Return the number of nodes to request: the wanted ones, and spares."""
    return allocation.spec.wanted.most + allocation.plan.num_spares


def header(allocation: Allocation) -> list[str]:
    """Return the lines that tell the batch system what is requested."""
    values = _values(allocation)
    lines = value_of(allocation.spec, "header").split("\\n")
    has_all = [line for line in lines if all(lead or values.get(n) for n, lead in _FIELD.findall(line))]
    return [_filled(line, values) for line in has_all if line]


def command(allocation: Allocation, key: str) -> list[str]:
    """Return the words of a command with its fields filled in, the job's number among them.

    Raises:
        MeshUsageError: if they can't be told apart.
    """
    template = value_of(allocation.spec, key)
    values = {**_values(allocation), "id": allocation.id}
    return words(_filled(template, {k: shlex.quote(v) if v else "" for k, v in values.items()}), key)


def words(text: str, key: str) -> list[str]:
    """Return the words of a command.

    Raises:
        MeshUsageError: if a quote in it is never closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise MeshUsageError(f"[command] {key} = {text!r} is no command: {error}") from None


def _filled(template: str, values: dict[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        known = values.get(found[1])
        return found[0] if known is None else f"{found[2] or ''}{known}" if known else ""

    return _FIELD.sub(value, template)


def _values(allocation: Allocation) -> dict[str, str]:
    spec = allocation.spec
    minutes = max(1, round(spec.time_s / 60)) if spec.time_s else 0
    return {
        "hosts": str(num_nodes(allocation)),
        "name": allocation.mesh,
        "request": allocation.request_name,
        "gpus": str(spec.gpus or ""),
        "time": f"{minutes // 60:02}:{minutes % 60:02}:00" if minutes else "",
        "minutes": str(minutes or ""),
        "queue": spec.partition,
        "account": spec.account,
    }
