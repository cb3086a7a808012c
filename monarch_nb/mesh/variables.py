"""Shows the variables of each rank and compares them between ranks."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monarch_nb._protocol.variables import VariableRow
from monarch_nb._protocol.work import Work
from monarch_nb._shape import format_ranks, name_ranks
from monarch_nb._tracebacks import BadValue
from monarch_nb.actor.proc_mesh import work_on
from monarch_nb.exceptions import ActorError, NotDefinedHere, UnknownVariable

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh

_COLUMNS = ("ranks", "name", "type", "shape", "dtype", "device", "norm", "value")
MAX_LEAVES_SHOWN = 10
MAX_NAMES_SHOWN = 8


def check_name(name: str) -> None:
    """Refuse what is no variable's name.

    Raises:
        ValueError: naming it.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise BadValue(f"a variable's name is an identifier, not {name!r}")


def explained(error: ActorError, ranks: Sequence[int]) -> ActorError:
    """Return the error about variables that aren't defined, in one line: on which of these ranks, and which
    name may have been meant.

    Any other error is returned as it is.
    """
    if not all(isinstance(f.exception, NotDefinedHere) for f in error.failures):
        return error
    missing = [f.exception for f in error.failures if isinstance(f.exception, NotDefinedHere)]
    where = [ranks[i] for i in error.ranks]
    others = [ranks[i] for i in error.results]
    near, held = (list(dict.fromkeys(name for m in missing for name in found(m))) for found in (_near, _held))
    if others:
        more = (
            f"; {name_ranks(others)} {'has' if len(others) == 1 else 'have'} it: --ranks "
            f"{format_ranks(others)}"
        )
    elif near:
        more = f". Did you mean {' or '.join(map(repr, near[:3]))}?"
    elif held:
        more = (
            ". Defined there: "
            f"{', '.join(held[:MAX_NAMES_SHOWN])}{', ...' if len(held) > MAX_NAMES_SHOWN else ''}"
        )
    else:
        more = ". Nothing is defined there yet: a %%mesh cell or %mesh push does that"
    return UnknownVariable(
        f"{missing[0]} on {name_ranks(where)}{more}", error.failures, error.results, error.num_unfinished
    ).briefly()


def _near(missing: NotDefinedHere) -> tuple[str, ...]:
    return missing.near


def _held(missing: NotDefinedHere) -> tuple[str, ...]:
    return missing.held


class Variables:
    """The variables of some ranks, equal ones once. Shows itself as a table; those that differ between ranks
    are marked.

    Attributes:
        by_rank: for each rank, a row (a dict) for each variable.
    """

    def __init__(self, by_rank: Mapping[int, Sequence[VariableRow]]) -> None:
        self.by_rank = {rank: list(rows) for rank, rows in by_rank.items()}

    def names(self) -> list[str]:
        """Return the names of all variables."""
        return sorted({row["name"] for rows in self.by_rank.values() for row in rows})

    def groups(self, name: str) -> list[tuple[tuple[int, ...], VariableRow | None]]:
        """Return a variable's distinct rows with their ranks; None for ranks that don't have it."""
        found: dict[str, tuple[list[int], VariableRow | None]] = {}
        for rank, rows in self.by_rank.items():
            row = next((r for r in rows if r["name"] == name), None)
            key = (
                ""
                if row is None
                else repr(sorted((k, v) for k, v in row.items() if k != "text" or "norm" not in row))
            )
            found.setdefault(key, ([], row))[0].append(rank)
        return [(tuple(ranks), row) for ranks, row in found.values()]

    def differing(self) -> list[str]:
        """Return the names of variables that aren't equal on all ranks."""
        return [name for name in self.names() if len(self.groups(name)) > 1]

    def _rows(self) -> list[tuple[bool, tuple[str, ...]]]:
        table = []
        for name in self.names():
            groups = self.groups(name)
            for ranks, row in groups:
                table.append((len(groups) > 1, _cells(ranks, name, row)))
        return table

    def text(self) -> str:
        """Return the table as text; `!` marks what differs."""
        rows = self._rows()
        if not rows:
            return "no variables"
        lines = [("", *_COLUMNS), *(("!" if differs else "", *cells) for differs, cells in rows)]
        used = [i for i in range(len(lines[0])) if i < 4 or any(line[i] for line in lines[1:])]
        widths = {i: max(len(line[i]) for line in lines) for i in used}
        return "\n".join("  ".join(line[i].ljust(widths[i]) for i in used).rstrip() for line in lines)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = self._rows()
        if not rows:
            return "<pre>no variables</pre>"
        head = "".join(f"<th style='text-align:left'>{c}</th>" for c in _COLUMNS)
        body = "".join(
            f"<tr{_MARKED if differs else ''}>"
            + "".join(f"<td style='text-align:left'>{html.escape(c)}</td>" for c in cells)
            + "</tr>"
            for differs, cells in rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_MARKED = " style='font-weight:bold' title='differs between ranks'"


def _cells(ranks: tuple[int, ...], name: str, row: VariableRow | None) -> tuple[str, ...]:
    label = f"[{format_ranks(ranks)}]"
    if row is None:
        return (label, name, "not defined", "", "", "", "", "")
    norm = row.get("norm")
    shape = row.get("shape")
    return (
        label,
        name,
        row["type"],
        "" if shape is None else "x".join(map(str, shape)) if shape else "scalar",
        row.get("dtype", ""),
        row.get("device", ""),
        "" if norm is None else f"{norm:.6g}",
        row.get("sharded") or row.get("text", ""),
    )


# --- disagreement


@dataclass(frozen=True)
class LeafDifference:
    """One part of a value on which ranks disagree.

    Attributes:
        path: which part, as in `['fc.weight']`; empty for the value itself.
        groups: rank sets that agree among themselves; the largest first: the others are compared with it.
        what: for each further group, in words: the first differing element, the largest difference.
    """

    path: str
    groups: tuple[tuple[int, ...], ...]
    what: tuple[str, ...]


@dataclass(frozen=True)
class Difference:
    """The difference between ranks in the value of one variable. True if there is one.

    Example:
        >>> mesh.diff("model")        # doctest: +SKIP
        model differs in 1 of 2 parts
          ['weight']: [0-6] agree
            [7] first differs at (0, 3): 0.25 instead of 0.5; largest difference 0.75, in 12 of 64 elements
    """

    name: str
    num_leaves: int
    leaves: tuple[LeafDifference, ...]
    num_hidden: int = 0

    def __bool__(self) -> bool:
        return bool(self.leaves)

    def text(self) -> str:
        """Return the differences between ranks as text."""
        if not self.leaves:
            return f"{self.name} is equal on all ranks"
        num = len(self.leaves) + self.num_hidden
        parts = f" in {num} of {self.num_leaves} parts" if self.num_leaves > 1 else ""
        lines = [f"{self.name} differs{parts}"]
        for leaf in self.leaves:
            first, *others = leaf.groups
            lines.append(f"  {leaf.path + ': ' if leaf.path else ''}[{format_ranks(first)}] agree")
            lines += [f"    [{format_ranks(g)}] {what}" for g, what in zip(others, leaf.what, strict=True)]
        if self.num_hidden:
            lines.append(f"  ... and {self.num_hidden} more parts")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__


def find_difference(mesh: Mesh, name: str, ranks: tuple[int, ...]) -> Difference:
    """Compare a variable on ranks: by digests first; of what differs, one copy of each kind is brought
    here.
    """
    part = mesh.part(ranks)
    try:
        digests = work_on(part, Work.LEAF_DIGESTS, name, f"diff of {name}").get().values()
    except ActorError as error:
        raise explained(error, ranks) from None
    by_rank = dict(zip(ranks, digests, strict=True))
    paths = list(dict.fromkeys(path for found in by_rank.values() for path in found))
    differing = [(path, groups) for path in paths if len(groups := _grouped(by_rank, path)) > 1]
    shown = [_compare(mesh, name, path, groups) for path, groups in differing[:MAX_LEAVES_SHOWN]]
    return Difference(name, len(paths), tuple(shown), len(differing) - len(shown))


def _grouped(by_rank: Mapping[int, Mapping[str, str]], path: str) -> list[tuple[int, ...]]:
    """Return the ranks that agree on a part, the largest group first."""
    found: dict[str | None, list[int]] = {}
    for rank, digests in by_rank.items():
        found.setdefault(digests.get(path), []).append(rank)
    return sorted((tuple(ranks) for ranks in found.values()), key=lambda g: (-len(g), g))


def _compare(mesh: Mesh, name: str, path: str, groups: list[tuple[int, ...]]) -> LeafDifference:
    firsts = [group[0] for group in groups]
    values = work_on(mesh.part(firsts), Work.LEAF_AT, (name, path), f"diff of {name}").get().values()
    reference, *others = values
    return LeafDifference(
        path, tuple(groups), tuple(describe_difference(other, reference) for other in others)
    )


MISSING = "<missing>"
"""A rank's answer if it has no such part."""


def describe_difference(value: Any, reference: Any) -> str:
    """Say how a value differs from another.

    >>> describe_difference([1], [2])
    '[1] instead of [2]'
    """
    if isinstance(value, str) and value == MISSING:
        return "does not have it"
    if isinstance(reference, str) and reference == MISSING:
        return "has it, the others do not"
    if not (_is_numeric(value) and _is_numeric(reference)):
        return f"{_short(value)} instead of {_short(reference)}"
    if tuple(value.shape) != tuple(reference.shape):
        return f"has shape {tuple(value.shape)} instead of {tuple(reference.shape)}"
    if value.dtype != reference.dtype:
        return f"has dtype {value.dtype} instead of {reference.dtype}"
    return _numeric_difference(value, reference)


def _is_numeric(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _numeric_difference(value: Any, reference: Any) -> str:
    import numpy

    ours, theirs = (_as_array(v) for v in (value, reference))
    differs = ~((ours == theirs) | ((ours != ours) & (theirs != theirs)))
    num = int(differs.sum())
    if not num:
        return "differs in its bits only (such as the sign of zero)"
    first = tuple(int(i) for i in numpy.unravel_index(int(differs.ravel().argmax()), ours.shape))
    place = f" at {first if len(first) != 1 else first[0]}" if first else ""
    text = f"first differs{place}: {ours[first]:.6g} instead of {theirs[first]:.6g}"
    with numpy.errstate(invalid="ignore", over="ignore"):
        gaps = numpy.abs(ours - theirs)[differs]
    finite = gaps[numpy.isfinite(gaps)]
    largest = f"; largest difference {finite.max():.6g}" if finite.size else ""
    rest = f", {gaps.size - finite.size} not finite" if finite.size < gaps.size else ""
    return f"{text}{largest}, in {num:,} of {ours.size:,} elements{rest}"


def _as_array(value: Any) -> Any:
    import numpy

    if hasattr(value, "detach"):
        plain = value.to_dense() if value.is_sparse else value
        value = (plain if plain.is_complex() else plain.double()).numpy()
    array = numpy.asarray(value)
    return array if array.dtype.kind == "c" else array.astype(float)


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:79] + "…"
