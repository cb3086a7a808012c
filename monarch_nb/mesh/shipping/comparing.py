"""Packages that differ between hosts and this program: by host, not by rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from monarch_nb._client.session import Session
from monarch_nb._display.table import html_table, text_table
from monarch_nb._display.template import joined, render
from monarch_nb._shape import name_hosts
from monarch_nb._sync.env.installed import installed
from monarch_nb._sync.env.interpreter import this_interpreter
from monarch_nb._sync.env.layers import find_layers
from monarch_nb._sync.env.packages import PackageDifference, compare_packages
from monarch_nb.mesh.shipping.agents import AGENT_S, agents_on

HERE = "here"
_COLUMNS = ("package", "where", "version")


@dataclass(frozen=True)
class HostsDifference:
    """The packages that differ between hosts and this program. True if there are any, or a host couldn't
    answer.

    Attributes:
        hosts: hosts that were asked.
        packages: packages that differ; the sides are "here", or the index of a host.
        num_packages: number of packages in this program's environment.
        problems: why hosts couldn't answer, by their indices.

    Example:
        >>> mesh.diff_hosts()                            # doctest: +SKIP
        hosts 0-1: 1 of 148 packages differs
        package   where     version
        einops    here      0.8.1
                  host 1    not there
    """

    hosts: tuple[int, ...]
    packages: tuple[PackageDifference, ...]
    num_packages: int
    problems: Mapping[int, str]

    def __bool__(self) -> bool:
        return bool(self.packages or self.problems)

    def text(self) -> str:
        """Return a table of the differences, and what to type."""
        table = [text_table(_COLUMNS, self._rows())] if self.packages else []
        return "\n".join([self._headline(), *table, *self._notes()])

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        notes = [render("note_line.html", text=note) for note in (self._headline(), *self._notes())]
        table = [html_table(_COLUMNS, self._rows())] if self.packages else []
        return str(joined([notes[0], *table, *notes[1:]]))

    def _headline(self) -> str:
        who, num = name_hosts(self.hosts), len(self.packages)
        if not num:
            return f"{who}: all {self.num_packages} packages are as here" if not self.problems else who
        return f"{who}: {num} of {self.num_packages} packages differ{'s' * (num == 1)}"

    def _rows(self) -> list[tuple[str, str, str]]:
        rows = []
        for each in self.packages:
            names = [each.name, *[""] * (len(each.groups) - 1)]
            for name, (who, state) in zip(names, each.groups, strict=True):
                rows.append((name, _who_text(who), state))
        return rows

    def _notes(self) -> Iterator[str]:
        for index, problem in self.problems.items():
            yield f"host {index} can't say what it has: {problem}"
        if self.packages:
            yield "%mesh sync --env (mesh.sync(env=True)) gives hosts what is here; then %mesh restart"


def compare_hosts(session: Session, hosts: Sequence[int]) -> HostsDifference:
    """Return the packages that differ between this program and hosts, in the environments where their ranks
    are started.

    Args:
        hosts: their indices.

    Raises:
        EnvironmentSyncError: if this program's own environment is a distribution's.
    """
    here = installed(find_layers(this_interpreter()))
    with agents_on(session, hosts) as agents:
        found = agents.ask(lambda agent: agent.packages.call_one(), AGENT_S)
        problems = dict(agents.trust.lost)
    known = {HERE: here} | {str(host): packages for host, packages in sorted(found.items())}
    return HostsDifference(tuple(hosts), compare_packages(known), len(here), problems)


def _who_text(who: Sequence[str]) -> str:
    hosts = [int(each) for each in who if each != HERE]
    return ", ".join([HERE] * (HERE in who) + ([name_hosts(hosts)] if hosts else []))
