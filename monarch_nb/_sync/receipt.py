"""The receipt of a sync, as data and as text."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from monarch_nb._reload import RankReload
from monarch_nb._shape import format_ranks


class Part(Protocol):
    """One kind of thing that a sync sends to hosts: the workspace, an environment. A frozen dataclass."""

    @property
    def is_done(self) -> bool:
        """Say whether all hosts have this part."""

    def lines(self) -> list[str]:
        """Return the report as lines, one for each kind; hosts with equal results are merged."""


@dataclass(frozen=True)
class SyncReceipt:
    """The receipt of a `sync`: what was sent to hosts, part by part, and what each rank reloaded. Its text
    merges equal ranks.

    Attributes:
        ranks: what was reloaded, by rank.
        program: what this program has reloaded of its own modules.
        busy: ranks that hadn't answered at the time limit: they reload as soon as what they run has ended.
        lost: by rank, why the rank couldn't be asked.
        seconds: how long it has taken.
        is_dry: whether nothing was done.
        parts: what was sent to hosts.
    """

    ranks: Mapping[int, RankReload]
    program: RankReload
    busy: tuple[int, ...] = ()
    lost: Mapping[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    is_dry: bool = False
    parts: tuple[Part, ...] = ()

    @property
    def is_done(self) -> bool:
        """Say whether all hosts have all parts, and whether all ranks and this program run the files' present
        code.
        """
        if self.busy or self.lost or self.is_dry or not all(part.is_done for part in self.parts):
            return False
        return all(m.is_done for each in (self.program, *self.ranks.values()) for m in each.modules)

    def lines(self) -> list[str]:
        """Return the receipt as lines, one for each kind, labelled with the hosts or ranks."""
        return [line for part in self.parts for line in part.lines()] + (self._reloaded() or self._nothing())

    def _reloaded(self) -> list[str]:
        found: dict[str, list[int]] = {}
        for rank, each in self.ranks.items():
            for line in _lines_of(each):
                found.setdefault(line, []).append(rank)
        lines = [f"[{format_ranks(ranks)}] {line}" for line, ranks in found.items()]
        lines += [f"[here] {line}" for line in _lines_of(self.program)]
        if self.busy:
            lines.append(f"[{format_ranks(self.busy)}] busy: reloads as soon as what runs there has ended")
        return lines + [f"[{rank}] {reason}" for rank, reason in self.lost.items()]

    def _nothing(self) -> list[str]:
        if not self.ranks and self.parts:
            return []
        nums = {each.num_modules for each in self.ranks.values()}
        if nums == {0} or not nums:
            return ["nothing to reload: ranks have loaded no modules of yours, only installed packages"]
        num = f"{min(nums)}" if len(nums) == 1 else f"{min(nums)} to {max(nums)}"
        return [
            (
                f"nothing to reload: all ranks run what the files hold ({num} module{'s' * (nums != {1})} "
                "of yours)"
            )
        ]

    def errors(self) -> str:
        """Return the tracebacks of modules that could not be reloaded, equal ones merged."""
        everybody = [*self.ranks.values(), self.program]
        found = dict.fromkeys(m.error.rstrip() for each in everybody for m in each.modules if m.error)
        return "\n\n".join(found)

    def __str__(self) -> str:
        return "\n".join([*self.lines(), *filter(None, [self.errors()])])

    def _repr_html_(self) -> str:
        return f"<pre style='{_LIKE_OUTPUT}'>{html.escape(str(self))}</pre>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


_LIKE_OUTPUT = "margin:0;font-size:var(--jp-code-font-size,13px);line-height:var(--jp-code-line-height,1.31)"
"""Style that makes JupyterLab's `pre` in HTML outputs as small as printed output."""


def _lines_of(each: RankReload) -> list[str]:
    done = [m.summary() for m in each.modules if m.is_done]
    others = [m.summary() for m in each.modules if not m.is_done]
    return [*([f"reloaded {', '.join(done)}"] if done else []), *others, *each.notes]
