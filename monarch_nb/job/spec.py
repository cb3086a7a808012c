"""The specification of hosts: how many, of which kind, for how long, and what runs on them. The keys of a
profile, and flags of `%mesh start --on`.
"""

from __future__ import annotations

import difflib
import hashlib
import ipaddress
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Self, TypeVar

from monarch_nb._units import duration, parse_duration
from monarch_nb.exceptions import MeshUsageError

MAX_HOSTS = 10_000
INSIDE = "inside"
_RANGE = re.compile(r"([0-9]{1,6})(?:\.\.([0-9]{1,6}))?")
_MACHINE = re.compile(r"(?:[\w.+-]+@)?[\w.-]+", re.ASCII)
_BRACKETS = re.compile(r"([^\[\]]*)\[([0-9,-]+)\]([^\[\]]*)")
_PORTS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_FLAG = re.compile(r"[A-Za-z][\w-]*")
Found = TypeVar("Found")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a question that names what is spelled nearly as `word`; nothing if nothing is.

    >>> nearest("partitoin", ["partition", "python"])
    ' Did you mean partition?'
    """
    found = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f" Did you mean {found[0]}?" if found else ""


def _ends(pattern: re.Pattern[str], text: str | int) -> tuple[int, int] | None:
    """Return both ends of a range that was typed, a single number being both; None if it's none."""
    found = pattern.fullmatch(str(text))
    return None if found is None else (int(found[1]), int(found[2] or found[1]))


@dataclass(frozen=True)
class HostRange:
    """The number of hosts, as a range: at least `least` are needed, more are taken up to `most`."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most <= MAX_HOSTS:
            raise MeshUsageError(
                f"a number of hosts is N or LEAST..MOST, from 1 to {MAX_HOSTS:,}; not {self}"
            )

    @classmethod
    def parse(cls, text: str | int) -> Self:
        """Read `4` or `2..8`.

        Raises:
            MeshUsageError: saying what was expected.

        >>> HostRange.parse("2..8")
        HostRange(least=2, most=8)
        """
        ends = _ends(_RANGE, text)
        if ends is None:
            raise MeshUsageError(
                f"a number of hosts is N or LEAST..MOST, as in 4 or 2..8; not {str(text)[:60]!r}"
            )
        return cls(*ends)

    def __str__(self) -> str:
        return f"{self.least}" if self.least == self.most else f"{self.least}..{self.most}"


@dataclass(frozen=True)
class PortRange:
    """Ports that a mesh may listen at."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str | int) -> Self:
        """Read `29400` or `29400-29500`.

        Raises:
            MeshUsageError: saying what was expected.

        >>> PortRange.parse("29400-29500")
        PortRange(first=29400, last=29500)
        """
        first, last = _ends(_PORTS, text) or (0, 0)
        if not 1 <= first <= last <= 65535:
            raise MeshUsageError(f"ports are FIRST-LAST, as in 29400-29500; not {str(text)[:60]!r}")
        return cls(first, last)

    def __str__(self) -> str:
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"


def machines(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return the machines that a list names.

    Raises:
        MeshUsageError: for what is no host's name, and for one that is there twice.

    >>> machines("a,me@b[1-3]")
    ('a', 'me@b1', 'me@b2', 'me@b3')
    """
    given = re.split(r",(?![^\[]*\])", names) if isinstance(names, str) else list(names)
    found = [machine for name in given for machine in _expanded(name.strip())]
    for name in found:
        if not _MACHINE.fullmatch(name) or name.startswith("-"):
            raise MeshUsageError(
                "hosts: expected names of ~/.ssh/config or addresses, as in node1, me@node1 or "
                f"node[1-4]; not {name[:60]!r}"
            )
    twice = next((n for n in found if found.count(n) > 1), None)
    if twice is not None:
        raise MeshUsageError(f"host {twice!r} is there twice; name each host once")
    return tuple(found)


def hosts_typed(text: str) -> dict[str, object]:
    """Return the fields of a spec that `--hosts` sets: a number of hosts, or their names.

    Raises:
        MeshUsageError: saying what was expected.

    >>> hosts_typed("10.0.0.5")
    {'machines': ('10.0.0.5',), 'hosts': None}
    """
    is_number = ".." in text or text.lstrip("+-").isdigit() or not text
    return {"hosts": HostRange.parse(text)} if is_number else {"machines": machines(text), "hosts": None}


def _expanded(name: str) -> list[str]:
    found = _BRACKETS.fullmatch(name)
    if found is None:
        return [name]
    numbers: list[str] = []
    for part in found[2].split(","):
        first, dash, last = part.partition("-")
        if not first or (dash and not last) or not 0 <= int(last or first) - int(first) < MAX_HOSTS:
            raise MeshUsageError(
                f"hosts are counted upwards, as in node[1-4] or node[01-16,20]; not {name[:60]!r}"
            )
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last or first) + 1)]
    return [f"{found[1]}{number}{found[3]}" for number in numbers]


@dataclass(frozen=True)
class HostSpec:
    """The specification of the requested hosts. Empty fields leave the choice to the engine.

    Attributes:
        engine: name of the engine: ssh, slurm ...
        machines: names of the hosts, where they are known by name.
        gpus: GPUs of each host.
        login: host on which the engine's commands run, for ssh; empty: this machine.
        python: interpreter on the hosts; empty: this program's.
        setup: shell lines before it.
        scratch: directory on each host for sockets and segments: a local disk; variables are expanded there.
        network: which of the controller's addresses others can reach.
        controller: where the mesh's controller runs: `INSIDE`, on the first host; empty: on this machine.
        own: settings of this engine only, by key; for slurm any flag of sbatch.
    """

    engine: str
    hosts: HostRange | None = None
    machines: tuple[str, ...] = ()
    gpus: int | None = None
    time_s: float | None = None
    login: str = ""
    partition: str = ""
    account: str = ""
    python: str = ""
    setup: tuple[str, ...] = ()
    scratch: str = ""
    network: str = ""
    ports: PortRange | None = None
    usd_per_gpu_hour: float | None = None
    controller: str = ""
    own: tuple[tuple[str, str], ...] = ()

    @property
    def wanted(self) -> HostRange:
        """The number of hosts: the number given, or of all that are named, or one."""
        return self.hosts or HostRange(len(self.machines) or 1, len(self.machines) or 1)

    def own_value(self, key: str, default: str = "") -> str:
        """Return one of the engine's own settings."""
        return dict(self.own).get(key, default)

    def digest(self) -> str:
        """Return a digest that is equal for equal specs only."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    def difference(self, other: HostSpec) -> str:
        """Return what another spec has otherwise, for people; empty if nothing.

        >>> HostSpec("slurm", partition="a100").difference(HostSpec("slurm", partition="h100"))
        'partition a100 -> h100'
        """
        changed = [f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name)]
        return ", ".join(
            f"{n.removesuffix('_s')} {_shown(n, getattr(self, n))} -> {_shown(n, getattr(other, n))}"
            for n in changed
        )


def _shown(name: str, value: object) -> str:
    if name.endswith("_s") and isinstance(value, float):
        return duration(value).replace(" ", "")
    if isinstance(value, tuple):
        return ",".join("=".join(v) if isinstance(v, tuple) else str(v) for v in value) or "none"
    return "none" if value is None or value == "" else str(value)


# --- reading tables, of a profile and of a record


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise MeshUsageError(f"expected text in quotes, not {value!r}")
    return value


def _lines(value: object) -> tuple[str, ...]:
    return (_text(value),) if isinstance(value, str) else tuple(_text(line) for line in _list(value))


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise MeshUsageError(f'expected a list as in ["a", "b"], not {value!r}')
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_HOSTS:
        raise MeshUsageError(f"expected a number of at least 1, not {value!r}")
    return value


def _seconds(value: object) -> float:
    try:
        return parse_duration(str(value))
    except ValueError as error:
        raise MeshUsageError(str(error)) from None


def _price(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise MeshUsageError(f"expected dollars an hour, as in 2.5; not {value!r}")
    return float(value)


def _network(value: object) -> str:
    try:
        return str(ipaddress.ip_network(_text(value), strict=False))
    except ValueError:
        raise MeshUsageError(f"a network is written as in 10.10.0.0/16 or fd00::/8; not {value!r}") from None


def _controller(value: object) -> str:
    if value not in ("here", INSIDE):
        raise MeshUsageError(f"expected here or {INSIDE}, not {value!r}")
    return "" if value == "here" else INSIDE


def _ports(value: object) -> PortRange:
    return PortRange.parse(value if isinstance(value, int) else _text(value))


KEYS: dict[str, tuple[str, Callable[[object], object]]] = {
    "gpus": ("gpus", _count),
    "time": ("time_s", _seconds),
    "login": ("login", _text),
    "partition": ("partition", _text),
    "account": ("account", _text),
    "python": ("python", _text),
    "setup": ("setup", _lines),
    "scratch": ("scratch", _text),
    "network": ("network", _network),
    "ports": ("ports", _ports),
    "usd_per_gpu_hour": ("usd_per_gpu_hour", _price),
    "controller": ("controller", _controller),
}
"""Keys of a profile besides `engine`, `hosts` and the engine's own table: field and parser."""

ASKED_OF_ENGINES = ("gpus", "time", "login", "partition", "account", "python", "setup")
"""Keys that not every engine can do something about; `gpus` is the number of ranks on each host, too."""


def read_table(table: Mapping[str, object], engines: Iterable[str]) -> HostSpec:
    """Return the spec that a profile's table describes.

    Raises:
        MeshUsageError: naming the key, what was expected, and the nearest known key.
    """
    engine = _engine(table, engines)
    found: dict[str, object] = {}
    for key, value in table.items():
        if key in ("engine", engine):
            continue
        if key == "hosts":
            found.update(_in_key(key, value, _hosts))
            continue
        if key not in KEYS:
            raise MeshUsageError(
                f"unknown key {key!r}.{nearest(key, [*KEYS, 'hosts', 'engine', engine])} Known: "
                f"{', '.join(['engine', 'hosts', *KEYS])}, and [.{engine}]"
            )
        field, read = KEYS[key]
        found[field] = _in_key(key, value, read)
    own = _in_key(engine, table.get(engine, {}), _own)
    return HostSpec(engine, own=own, **found)  # type: ignore[arg-type]


def _engine(table: Mapping[str, object], engines: Iterable[str]) -> str:
    engine, known = table.get("engine"), list(engines)
    if not isinstance(engine, str):
        raise MeshUsageError(f'has no engine; say which: engine = "slurm" (known: {", ".join(known)})')
    if engine not in known:
        raise MeshUsageError(f"unknown engine {engine!r}.{nearest(engine, known)} Known: {', '.join(known)}")
    return engine


def _in_key(key: str, value: object, read: Callable[[object], Found]) -> Found:
    try:
        return read(value)
    except MeshUsageError as error:
        raise MeshUsageError(f"{key}: {error}") from None


def _hosts(value: object) -> dict[str, object]:
    if isinstance(value, list):
        return {"machines": machines(_text(v) for v in value)}
    return {"hosts": HostRange.parse(value if isinstance(value, int) else _text(value))}


def _own(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise MeshUsageError("expected a table of the engine's own settings")
    for key, each in value.items():
        if not _FLAG.fullmatch(key) or not isinstance(each, str | int | float) or "\n" in str(each):
            raise MeshUsageError(f"expected KEY = text, number, true or false; not {key} = {each!r}")
    return tuple((k, str(v).lower() if isinstance(v, bool) else str(v)) for k, v in value.items())
