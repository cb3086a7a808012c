"""The report on environments on hosts, as data and as text: a part of a sync's receipt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from monarch_nb._shape import format_ranks
from monarch_nb._units import elapsed_text, size_text
from monarch_nb.mesh.shipping.plan import PlannedPart, plan_lines

SHORT = 6
MAX_NAMED = 8


@dataclass(frozen=True)
class HostEnvironment:
    """An environment on one host.

    Attributes:
        prefix: where it is; "" where the notebook's own is used.
        is_shared: whether the host sees the notebook's files, so that nothing is sent.
        was_there: whether the prefix was there already.
        sent_bytes: bytes sent over the network.
        found_bytes: bytes found on the host outside its store: in other environments, in caches.
        index_bytes: bytes that came from the host's package index.
        problem: why the host doesn't have it; "" if it has.
        warnings: restrictions of the environment there.
        has_changed: whether the host started ranks in another one before.
        plan: in a dry run, the plan of each part.
    """

    prefix: str = ""
    is_shared: bool = False
    was_there: bool = False
    sent_bytes: int = 0
    found_bytes: int = 0
    index_bytes: int = 0
    problem: str = ""
    warnings: tuple[str, ...] = ()
    has_changed: bool = False
    plan: tuple[PlannedPart, ...] = ()


@dataclass(frozen=True)
class EnvironmentPart:
    """The notebook's environment on hosts.

    Attributes:
        id: of the environment; 64 hexadecimal digits.
        num_packages, num_bytes: size of the environment.
        hosts: by host.
        seconds: that it took.
        placed_s: that it took until the prefixes were there; zygotes started in them after that.
        is_dry: whether nothing was done.
        left_out: (path, reason) of files that aren't sent.
        edited: packages with files that differ from what was installed.
        corrupting: hosts that passed wrong content on to other hosts.
        old_ranks: ranks that still run another environment.
        idle: hosts without ranks: nothing is left running there, for they're taken when they're needed.
    """

    id: str
    num_packages: int
    num_bytes: int
    hosts: Mapping[int, HostEnvironment]
    seconds: float
    is_dry: bool = False
    left_out: tuple[tuple[str, str], ...] = ()
    edited: tuple[str, ...] = ()
    corrupting: tuple[int, ...] = ()
    old_ranks: tuple[int, ...] = field(default=())
    placed_s: float = 0.0
    idle: frozenset[int] = frozenset()

    @property
    def is_done(self) -> bool:
        """Say whether all hosts start ranks in this environment."""
        return not self.is_dry and not any(host.problem for host in self.hosts.values())

    def lines(self) -> list[str]:
        """Return the report in lines, hosts that did alike once."""
        found: dict[str, list[int]] = {}
        for index, host in self.hosts.items():
            for text in (self._line(host), *plan_lines(host.plan), *host.warnings):
                found.setdefault(text, []).append(index)
        lines = [
            f"[host{'s' * (len(hosts) > 1)} {format_ranks(hosts)}] {text}" for text, hosts in found.items()
        ]
        lines += [
            f"[host {index}] gave others what wasn't right, and feeds nobody: %mesh doctor"
            for index in self.corrupting
        ]
        return [*lines, *self._notes()]

    def _line(self, host: HostEnvironment) -> str:
        what = f"environment {self.id[:SHORT]}, {self.num_packages} packages, {size_text(self.num_bytes)}"
        if host.problem:
            return f"{what}: not there, {host.problem}"
        if host.is_shared:
            there = "shared, nothing to send"
        elif host.was_there:
            there = "is there already"
        else:
            there = f"{size_text(host.sent_bytes)} {'to send' if self.is_dry else 'sent, verified'}"
            if host.index_bytes:
                there = f"{size_text(host.index_bytes)} from its package index, {there}"
            if host.found_bytes:
                there = f"{size_text(host.found_bytes)} were there, {there}"
        return f"{what}: {there}{self._done(host)}"

    def _done(self, host: HostEnvironment) -> str:
        """Return the text about the host's zygote."""
        if self.is_dry:
            return ""
        return f"; new ranks run in it ({elapsed_text(self.seconds)})" if host.has_changed else "; in use"

    def _notes(self) -> list[str]:
        notes = []
        if self.edited:
            notes.append(f"edited by hand, and sent as they are: {_some(self.edited)}")
        if self.left_out:
            notes.append("left out: " + _some([f"{path} ({reason})" for path, reason in self.left_out]))
        if self.old_ranks and not self.is_dry:
            ranks = format_ranks(self.old_ranks)
            notes.append(f"ranks {ranks} run what they were started with: %mesh restart")
        return notes


def _some(names: tuple[str, ...] | list[str]) -> str:
    rest = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
