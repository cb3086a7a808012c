"""The argument `proc_bind` of `spawn_procs`: the CPUs and NUMA nodes of each process of a host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monarch_nb._shape import parse_cpu_set

KEYS = {
    "cpus": "CPUs",
    "physcpubind": "CPUs",
    "cpunodebind": "the CPUs of these NUMA nodes",
    "membind": "memory of these NUMA nodes only",
}


def check_bindings(
    bindings: Sequence[Mapping[str, str]] | None, per_host: int
) -> list[dict[str, str]] | None:
    """Return the bindings, checked.

    Raises:
        TypeError: if they're no mappings of text to text.
        ValueError: for another number than there are processes on a host, an unknown key, or what is no set
            of numbers.
    """
    if bindings is None:
        return None
    if isinstance(bindings, Mapping | str) or not all(isinstance(each, Mapping) for each in bindings):
        raise TypeError(
            'proc_bind takes a mapping for each process of a host, as in [{"cpus": "0-3"}]; not '
            f"{bindings!r}"
        )
    if len(bindings) != per_host:
        raise ValueError(
            f"proc_bind has {len(bindings)} {'entry' if len(bindings) == 1 else 'entries'}, and each "
            f"host gets {per_host} processes: give one for each"
        )
    return [{key: _check(key, value) for key, value in each.items()} for each in bindings]


def _check(key: Any, value: Any) -> str:
    if key not in KEYS:
        raise ValueError(
            f"proc_bind knows no key {key!r}; it knows "
            f"{', '.join(f'{k} ({what})' for k, what in KEYS.items())}"
        )
    if not isinstance(value, str):
        raise TypeError(f"proc_bind: {key} is text such as '0-3,8', not {value!r}")
    try:
        parse_cpu_set(value)
    except ValueError as error:
        raise ValueError(f"proc_bind: {key}: {error}") from None
    return value
