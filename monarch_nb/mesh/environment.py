"""Compares the environments of ranks: versions, variables, code, GPU drivers, settings, limits."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monarch_nb._display.table import html_table, text_table
from monarch_nb._display.template import joined, render
from monarch_nb._protocol.work import Work
from monarch_nb._shape import format_ranks
from monarch_nb.actor.proc_mesh import work_on

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh

RANDOM = "random states"
MISSING = "not there"
MAX_SHOWN = 100
_COLUMNS = ("what", "ranks", "value")
_PER_RANK = re.compile(
    r"(LOCAL_|GROUP_|ROLE_|NODE_|CROSS_)?RANK|ROLE_NAME|HOSTNAME|(CUDA|HIP|ROCR|ZE|ASCEND_RT)_VISIBLE_DEVICES"
    r"|NVIDIA_VISIBLE_DEVICES|SLURM_(PROCID|LOCALID|NODEID|GTIDS|TASK_PID|TOPOLOGY_ADDR)"
    r"|(OMPI_COMM_WORLD|PMI|PMIX|MPI)_\w*RANK|JPY_PARENT_PID|SHLVL|PWD|OLDPWD|_"
)
"""Names of variables that are each rank's or each host's own; whole names."""

_ABOUT_RANDOM = (
    "right if ranks draw their own (dropout, order of data); wrong if all are to build the same weights: "
    "torch.manual_seed(0) on all of them"
)
_ALIKE_RANDOM = (
    "right if all are to draw the same; wrong for dropout and order of data: torch.manual_seed(rank)"
)


@dataclass(frozen=True)
class EnvironmentItem:
    """A fact about the environment of ranks, such as a package's version.

    Attributes:
        section: python, packages, variables, code, gpu, torch, limits, or random states.
        name: of the package, the variable, ...
        groups: each distinct value with its ranks, the largest group first.
        expected: whether the value is each rank's own, so that different values are no difference.
    """

    section: str
    name: str
    groups: tuple[tuple[tuple[int, ...], str], ...]
    expected: bool = False

    @property
    def differs(self) -> bool:
        """Whether ranks have different values."""
        return len(self.groups) > 1


@dataclass(frozen=True)
class EnvironmentDifference:
    """A comparison of what ranks run with. True if they differ in something that ought to be equal.

    Attributes:
        ranks: ranks that were compared.
        items: everything that was compared.
        shows_all: whether `text` also lists equal items, and items that are each rank's own.

    Example:
        >>> mesh.diff_env()                            # doctest: +SKIP
        what                      ranks    value
        packages: numpy           [0-6]    2.1.0
                                  [7]      1.26.4
    """

    ranks: tuple[int, ...]
    items: tuple[EnvironmentItem, ...]
    shows_all: bool = False

    def differing(self) -> tuple[EnvironmentItem, ...]:
        """Return the settings that differ and ought to be equal."""
        return tuple(i for i in self.items if i.differs and not i.expected and i.section != RANDOM)

    def find(self, section: str, name: str) -> EnvironmentItem | None:
        """Return one item; None if no rank has it."""
        return next((i for i in self.items if (i.section, i.name) == (section, name)), None)

    def __bool__(self) -> bool:
        return bool(self.differing())

    def text(self) -> str:
        """Return a table of what differs, and a line about random states."""
        return "\n".join(
            [
                self._headline(),
                *([text_table(_COLUMNS, rows)] if (rows := self._rows()) else []),
                *self._notes(),
            ]
        )

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = self._rows()
        table = [html_table(_COLUMNS, rows)] if rows else []
        notes = [render("note_line.html", text=note) for note in (self._headline(), *self._notes())]
        return str(joined([notes[0], *table, *notes[1:]]))

    def _headline(self) -> str:
        num = len(self.differing())
        who = f"[{format_ranks(self.ranks)}]"
        if not num:
            return f"{who} run with the same versions, variables, code, drivers, settings and limits"
        return f"{who} differ in {num} thing{'s' if num != 1 else ''}"

    def _shown(self) -> tuple[EnvironmentItem, ...]:
        return self.items if self.shows_all else self.differing()

    def _rows(self) -> list[tuple[str, str, str]]:
        rows = []
        for item in self._shown():
            names = [f"{item.section}: {item.name}", *[""] * (len(item.groups) - 1)]
            for name, (ranks, value) in zip(names, item.groups, strict=True):
                rows.append((name, f"[{format_ranks(ranks)}]", value if self.shows_all else _short(value)))
        return rows

    def _notes(self) -> Iterator[str]:
        if len(self.ranks) > 1:
            for differs, what in ((True, _ABOUT_RANDOM), (False, _ALIKE_RANDOM)):
                names = [i.name for i in self.items if i.section == RANDOM and i.differs is differs]
                if names:
                    yield f"random states {'differ' if differs else 'are equal'} ({', '.join(names)}): {what}"
        num = sum(i.differs and i.expected for i in self.items)
        if num and not self.shows_all:
            yield (
                f"{num} variables that are each rank's own are left out; --all shows them, and what is equal"
            )


def find_environment_difference(
    mesh: Mesh, ranks: tuple[int, ...], *, shows_all: bool = False
) -> EnvironmentDifference:
    """Ask ranks for their environments, and compare them."""
    found = (
        work_on(mesh.part(ranks), Work.ENVIRONMENT, secrets.token_bytes(16), "diff of environments")
        .get()
        .values()
    )
    return EnvironmentDifference(ranks, tuple(compare(dict(zip(ranks, found, strict=True)))), shows_all)


def compare(by_rank: Mapping[int, Mapping[str, Mapping[str, str]]]) -> Iterator[EnvironmentItem]:
    """Yield each item of the environments, equal values merged.

    >>> old, new = {"packages": {"numpy": "1.26"}}, {"packages": {"numpy": "2.1"}}
    >>> for item in compare({0: new, 1: old, 2: new}):
    ...     print(item.name, item.groups, item.differs)
    numpy (((0, 2), '2.1'), ((1,), '1.26')) True
    """
    sections = dict.fromkeys(section for found in by_rank.values() for section in found)
    for section in sections:
        names = dict.fromkeys(name for found in by_rank.values() for name in found.get(section, ()))
        for name in names:
            groups: dict[str, list[int]] = {}
            for rank, found in by_rank.items():
                groups.setdefault(found.get(section, {}).get(name, MISSING), []).append(rank)
            ordered = sorted(
                ((tuple(ranks), value) for value, ranks in groups.items()), key=lambda g: (-len(g[0]), g[0])
            )
            yield EnvironmentItem(
                section, name, tuple(ordered), section == "variables" and bool(_PER_RANK.fullmatch(name))
            )


def _short(value: str) -> str:
    return value if len(value) <= MAX_SHOWN else f"{value[: MAX_SHOWN - 1]}…"
