"""The limits of each rank of a mesh, as people type them: `memory=8G,cpus=2`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from monarch_nb._units import size_text

VARIABLE = "MONARCH_NB_LIMIT"
"""The ranks' environment variable that has their limits: so these go wherever the environment goes, to hosts
that join later and to ranks that are started anew.
"""
MIN_MEMORY_BYTES = 64 << 20
"""An interpreter with the package takes some 50 MB."""
_MIN_CPUS = 0.01
"""The kernel takes no quota below a millisecond in each tenth of a second."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", re.IGNORECASE)
_POWERS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


@dataclass(frozen=True)
class Limits:
    """The most memory, in bytes, and processor time, in processors, that a rank and what it starts may use.
    None: no limit.
    """

    memory_bytes: int | None = None
    cpus: float | None = None

    def __str__(self) -> str:
        memory = [] if self.memory_bytes is None else [f"{size_text(self.memory_bytes)} of memory"]
        cpus = [] if self.cpus is None else [f"{self.cpus:g} {'CPU' if self.cpus == 1 else 'CPUs'}"]
        return " and ".join(memory + cpus)


def parse_limits(text: str) -> Limits:
    """Return the limits in a text.

    Raises:
        ValueError: saying what was expected.

    >>> print(parse_limits("memory=1.5G,cpus=2"))
    1.5 GiB of memory and 2 CPUs
    >>> parse_limits("gpus=2")
    Traceback (most recent call last):
    ValueError: expected memory=SIZE, cpus=NUMBER or both, as in memory=8G,cpus=2; not 'gpus=2'
    """
    given = dict(part.partition("=")[::2] for part in text.replace(" ", "").split(","))
    if not given.keys() <= {"memory", "cpus"} or len(given) != text.count(",") + 1:
        raise ValueError(
            f"expected memory=SIZE, cpus=NUMBER or both, as in memory=8G,cpus=2; not {text[:60]!r}"
        )
    memory, cpus = given.get("memory"), given.get("cpus")
    return Limits(None if memory is None else _bytes(memory), None if cpus is None else _cpus(cpus))


def _bytes(text: str) -> int:
    found = _SIZE.fullmatch(text)
    num = round(float(found[1]) * (1 << _POWERS[found[2].upper()])) if found else 0
    if num < MIN_MEMORY_BYTES:
        raise ValueError(
            f"memory={text[:40]}: expected a size of {size_text(MIN_MEMORY_BYTES)} or more, as in memory=8G"
        )
    return num


def _cpus(text: str) -> float:
    num = float(text) if re.fullmatch(r"\d{1,6}(\.\d+)?", text) else 0.0
    if num < _MIN_CPUS:
        raise ValueError(f"cpus={text[:40]}: expected a number of processors, as in cpus=2 or cpus=0.5")
    return num
