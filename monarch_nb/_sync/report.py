"""The report on one workspace in a sync, host by host, as part of its receipt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monarch_nb._shape import name_hosts
from monarch_nb._sync.ignore import LeftOut
from monarch_nb._units import size_text, time_text
from monarch_nb._workspace.answers import Outcome

_NUM_NAMES = 4
_NOTHING = Outcome()


@dataclass(frozen=True)
class HostWorkspace:
    """The result of bringing one workspace to one host.

    Attributes:
        hostname: of the machine.
        folder: where the copy lies there.
        is_shared: whether the host has the notebook's own files: nothing was sent.
        outcome: what was put in place; in a dry run, what would be.
        num_files: contents that were sent, or would be.
        sent_bytes: their bytes.
        trouble: why it failed; "" if it didn't.
        link: with --same-path, why there is no link at the notebook's path; "" if there is one.
    """

    hostname: str
    folder: str = ""
    is_shared: bool = False
    outcome: Outcome = _NOTHING
    num_files: int = 0
    sent_bytes: int = 0
    trouble: str = ""
    link: str = ""

    @property
    def is_done(self) -> bool:
        """Say whether the host has all files."""
        return not self.trouble and not self.outcome.refused

    def lines(self, *, is_dry: bool) -> list[str]:
        """Return the result as lines, which are equal for hosts with equal results."""
        if self.is_shared:
            return ["shared: nothing sent"]
        if self.trouble:
            return [self.trouble]
        done = self.outcome
        lines = [self._summary(is_dry)]
        lines += [f"{path} was changed there: its content is kept as {kept}" for path, kept in done.theirs]
        lines += [f"{path}: {reason}" for path, reason in done.refused]
        return lines + ([self.link] if self.link else [])

    def _summary(self, is_dry: bool) -> str:
        done = self.outcome
        parts = [
            f"{len(paths)} {what} ({_named(paths)})" for what, paths in
            (("new", done.added), ("changed", done.changed), ("deleted", done.deleted)) if paths
        ]  # fmt: skip
        if not parts:
            return "nothing to send: it has all files"
        verb = "to send" if is_dry else "sent"
        return f"{', '.join(parts)}: {size_text(self.sent_bytes)} {verb}"


@dataclass(frozen=True)
class WorkspaceReceipt:
    """The result of bringing one workspace to all hosts.

    Attributes:
        folder: the notebook's.
        hosts: by index of the host.
        num_files, num_bytes: of the workspace.
        left_out: files that aren't sent, with reasons.
        not_covered: folders on the notebook's path that are in no workspace.
        seconds: duration until all hosts had it.
        is_dry: whether nothing was done.
    """

    folder: str
    hosts: Mapping[int, HostWorkspace]
    num_files: int
    num_bytes: int
    left_out: tuple[LeftOut, ...] = ()
    not_covered: tuple[str, ...] = ()
    seconds: float = 0.0
    is_dry: bool = False

    @property
    def is_done(self) -> bool:
        """Say whether all hosts have all files."""
        return all(host.is_done for host in self.hosts.values()) and not self.is_dry

    @property
    def sent_bytes(self) -> int:
        """The number of bytes that were sent to all hosts."""
        return sum(host.sent_bytes for host in self.hosts.values())

    def notes(self) -> list[str]:
        """Return notes to show even after a sync that happens by itself: files that ranks had changed, and
        where those are kept.
        """
        return [line for line in self.host_lines() if ".theirs" in line]

    def lines(self) -> list[str]:
        """Return the result as lines, one for each kind; hosts with equal results are merged."""
        if all(host.is_shared for host in self.hosts.values()):
            return [
                (
                    f"workspace {self.folder}: {name_hosts(tuple(self.hosts))} has these files by a shared "
                    "file system: nothing sent"
                )
            ]
        size = f"{self.num_files:,} files, {size_text(self.num_bytes)}"
        head = f"workspace {self.folder}: {size}" + ("" if self.is_dry else f", in {time_text(self.seconds)}")
        return [head, *self.host_lines(), *self._left_out_lines()]

    def host_lines(self) -> list[str]:
        """Return the lines about hosts."""
        found: dict[str, list[int]] = {}
        for index, host in self.hosts.items():
            for line in host.lines(is_dry=self.is_dry):
                found.setdefault(line, []).append(index)
        return [f"[{name_hosts(which)}] {line}" for line, which in found.items()]

    def _left_out_lines(self) -> list[str]:
        lines = []
        if self.left_out:
            lines.append(f"left out: {_named([f'{each.path} ({each.reason})' for each in self.left_out])}")
        if self.not_covered:
            lines.append(
                f"not covered: {_named(self.not_covered)}, on sys.path: %mesh sync PATH sends such a "
                "folder, too"
            )
        return lines


def _named(paths: Sequence[str]) -> str:
    rest = len(paths) - _NUM_NAMES
    more = [f"{rest:,} more"] if rest > 0 else []
    return ", ".join([*paths[:_NUM_NAMES], *more])
