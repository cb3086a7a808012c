"""New code on all ranks: which modules were reloaded where, and what ranks do by themselves about files that change."""

from __future__ import annotations

import html
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monarch_nb import _reload
from monarch_nb._reload import SYNC_VARIABLE, RankReload, ReloadRequest, SyncMode
from monarch_nb._shape import format_ranks
from monarch_nb.exceptions import DeviceMeshError, MeshUsageError, RankTimeout

if TYPE_CHECKING:
    from monarch_nb.actor.future import Future
    from monarch_nb.mesh.core import Mesh

SYNC_S = 10.0
MODE_S = 1.0
"""So long ranks are waited for that are to do something else from now on."""
_NAME = "sync"


@dataclass(frozen=True)
class SyncReceipt:
    """What `sync` has done, rank by rank; its text has equal ranks once.

    Attributes:
        ranks: by rank, what it has reloaded.
        program: what this program has reloaded of its own modules.
        busy: ranks that hadn't answered when the time was up: they reload as soon as what they run has ended.
        lost: by rank, why it couldn't be asked.
        seconds: how long it has taken.
        is_dry: whether nothing was done.
    """

    ranks: Mapping[int, RankReload]
    program: RankReload
    busy: tuple[int, ...] = ()
    lost: Mapping[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    is_dry: bool = False

    @property
    def is_done(self) -> bool:
        """Say whether all ranks, and this program, run what the files hold."""
        everybody = [self.program, *self.ranks.values()]
        return not self.busy and not self.lost and not self.is_dry and all(m.is_done for each in everybody for m in each.modules)

    def lines(self) -> list[str]:
        """Return what has happened, a line for each kind, with the ranks in front."""
        found: dict[str, list[int]] = {}
        for rank, each in self.ranks.items():
            for line in _lines_of(each):
                found.setdefault(line, []).append(rank)
        lines = [f"[{format_ranks(ranks)}] {line}" for line, ranks in found.items()]
        lines += [f"[here] {line}" for line in _lines_of(self.program)]
        if self.busy:
            lines.append(f"[{format_ranks(self.busy)}] busy: reloads as soon as what runs there has ended")
        lines += [f"[{rank}] {reason}" for rank, reason in self.lost.items()]
        return lines or [self._nothing()]

    def _nothing(self) -> str:
        nums = {each.num_modules for each in self.ranks.values()}
        if nums == {0} or not nums:
            return "nothing to reload: ranks have loaded no modules of yours, only installed packages"
        num = f"{min(nums)}" if len(nums) == 1 else f"{min(nums)} to {max(nums)}"
        return f"nothing to reload: all ranks run what the files hold ({num} module{'s' * (nums != {1})} of yours)"

    def errors(self) -> str:
        """Return the tracebacks of modules that could not be reloaded, equal ones once."""
        found = dict.fromkeys(m.error.rstrip() for each in [*self.ranks.values(), self.program] for m in each.modules if m.error)
        return "\n\n".join(found)

    def __str__(self) -> str:
        return "\n".join([*self.lines(), *filter(None, [self.errors()])])

    def _repr_html_(self) -> str:
        return f"<pre style='margin:0'>{html.escape(str(self))}</pre>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


def _lines_of(each: RankReload) -> list[str]:
    done = [m.summary() for m in each.modules if m.is_done]
    return [*([f"reloaded {', '.join(done)}"] if done else []), *(m.summary() for m in each.modules if not m.is_done), *each.notes]


def sync(mesh: Mesh, paths: Sequence[str | os.PathLike[str]], *, dry_run: bool, timeout_s: float) -> SyncReceipt:
    """Have this program and all ranks of a mesh reload what has changed; see `Mesh.sync`."""
    start = time.monotonic()
    request = ReloadRequest(_absolute(paths) or None, dry_run)
    program = _reload.reload_changed(request)
    futures: dict[int, Future[Any]] = {
        rank: mesh.part([rank])._work(b"reload", request, "sync") for rank in mesh.living_ranks()
    }
    ranks: dict[int, RankReload] = {}
    busy, lost = [], {}
    for rank, future in futures.items():
        try:
            ranks[rank] = future.get(max(0.0, start + timeout_s - time.monotonic())).item()
        except RankTimeout:
            busy.append(rank)
        except DeviceMeshError as error:
            lost[rank] = str(error).splitlines()[0]
    return SyncReceipt(ranks, program, tuple(busy), lost, time.monotonic() - start, dry_run)


def _absolute(paths: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    found = []
    for path in paths:
        name = os.path.abspath(os.path.expanduser(os.fspath(path)))
        if not os.path.exists(name):
            raise MeshUsageError(f"sync: there is no {os.fspath(path)!r} ({name}): expected a file or folder of yours; without any, all that has changed is reloaded")
        found.append(name)
    return tuple(found)


def sync_mode(mesh: Mesh) -> SyncMode:
    """Return what ranks do about code that has changed."""
    return SyncMode.of(mesh._session.request("get_name", name=_NAME) or mesh.started_with_env.get(SYNC_VARIABLE))


def set_sync_mode(mesh: Mesh, mode: str) -> None:
    """Have ranks do something else about code that has changed, and those that take their places; busy ones when they're done."""
    if mode not in tuple(SyncMode):
        raise MeshUsageError(f"sync_mode is one of {', '.join(SyncMode)}, not {mode!r}")
    mesh._session.request("set_name", name=_NAME, value=str(mode))
    with suppress(RankTimeout, DeviceMeshError):  # those that are busy read it when they're done; those that have died, when they're started again
        mesh.living().set_environment({SYNC_VARIABLE: str(mode)}).get(MODE_S)
