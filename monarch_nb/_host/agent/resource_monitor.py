"""Monitors the activity and resources of this machine's ranks: often while a client watches, rarely
otherwise.

Three sources: activity pages that ranks write (`_wire/activity_page`), ten times a second; the sampler, once
a second; and where busy ranks stand, which they are asked once a second. Unwatched, the machine is sampled
every five seconds, for the history of the last minutes.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from monarch_nb._host.agent.sampler import NOTHING_READ, Sample, Sampler
from monarch_nb._host.agent.supervisor import Rank, Supervisor
from monarch_nb._host.loop import Loop
from monarch_nb._protocol.base import decode
from monarch_nb._protocol.questions import WhereNow
from monarch_nb._protocol.resources import (
    HISTORY_S,
    UNMONITORED,
    Collective,
    GpuStatus,
    History,
    MonitoredHost,
    MonitoredRank,
    Standing,
    Transfers,
)
from monarch_nb._protocol.states import ProcState
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.activity_page import BUSY, DEBUGGING, IDLE, PAGE_BYTES, Activity, read_page, read_totals

POLL_S = 0.1
SAMPLE_S = 1.0
HISTORY_POINTS = 60
"""Number of points: five minutes."""
PSS_PER_SAMPLE = 1
"""Number of ranks whose memory is read in one round: the kernel walks all their pages, some 2.5 ms with torch
loaded.
"""
WHERE_REF = (1 << 50) + 1
CELL = "cell"
"""The word for a cell on a rank's activity page."""
FRESH_S = 0.4
"""How long a fresh reading of everything may wait for ranks."""

Rows = dict[int, MonitoredRank]
OnChange = Callable[[Rows, MonitoredHost | None], None]


class ResourceMonitor:
    """The monitor of the activities and resources of this machine's ranks, which samples as often as the
    state is watched. Owned by the loop thread.

    Args:
        me: proc id of this host process.
        send: sends a frame to a rank of this machine.
        on_change: called with new readings: rows by proc, and the machine's row, or None.
    """

    def __init__(
        self,
        me: int,
        directory: str,
        loop: Loop,
        supervisor: Supervisor,
        send: Callable[[int, bytes], None],
        on_change: OnChange,
    ) -> None:
        self._me = me
        self._directory = directory
        self._loop = loop
        self._supervisor = supervisor
        self._send = send
        self._on_change = on_change
        self._sampler = Sampler(loop)
        self._pages: dict[int, int] = {}
        """File descriptors by proc."""
        self._last: dict[int, bytes] = {}
        self._counts: dict[int, tuple[int, ...]] = {}
        self._rows: Rows = {}
        self._fresh: set[int] = set()
        """Procs whose rows have changed since the last publication."""
        self._asked: set[int] = set()
        self._next_pss = 0
        self._history: deque[tuple[float | None, float | None, float | None]] = deque(maxlen=HISTORY_POINTS)
        self._watched = False
        self._num_watches = 0
        """Counter of watches: it invalidates timers of earlier ones."""
        self._next_history = 0.0
        self._waiting: list[Callable[[], None]] = []
        """Callbacks that wait for ranks to say where they are."""
        loop.call_later(HISTORY_S, self._sample_unwatched)

    # --- when

    def watch(self, on: bool) -> None:
        """Begin to poll and sample the ranks here when the state is watched; stop when it no longer is."""
        if on and not self._watched:
            self._watched = True
            self._num_watches += 1
            self._poll_again(self._num_watches)
            self._sample_again(self._num_watches)
        self._watched = on

    def _poll_again(self, watch: int) -> None:
        if self._watched and watch == self._num_watches:
            self._poll()
            self._tell(None)
            self._loop.call_later(POLL_S, lambda: self._poll_again(watch))

    def _sample_again(self, watch: int) -> None:
        if self._watched and watch == self._num_watches:
            self._sample(PSS_PER_SAMPLE)
            self._ask_where()
            self._loop.call_later(SAMPLE_S, lambda: self._sample_again(watch))

    def _sample_unwatched(self) -> None:
        self._loop.call_later(HISTORY_S, self._sample_unwatched)
        if not self._watched:
            self._sampler.ask((), (), lambda sample: self._take_sample(sample.host))

    def glance(self) -> None:
        """Read the activity pages now."""
        self._poll()
        self._tell(None)

    def look(self, done: Callable[[], None]) -> None:
        """Take all readings now; `done` is called once they are sent, or after `FRESH_S`."""
        self._poll()
        left = {"sample", "where"}
        is_done = False

        def finish() -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                self._tell(None)
                done()

        def have(what: str) -> None:
            left.discard(what)
            if not left:
                finish()

        self._sample(len(self._supervisor.ranks), lambda: have("sample"))
        self._waiting.append(lambda: have("where"))
        self._ask_where()
        self._loop.call_later(FRESH_S, finish)

    # --- pages

    def forget(self, proc: int) -> None:
        """Drop all data of a rank that has ended, including its page."""
        fd = self._pages.pop(proc, -1)
        if fd >= 0:
            os.close(fd)
        self._last.pop(proc, None)
        self._counts.pop(proc, None)
        self._rows.pop(proc, None)
        self._asked.discard(proc)
        self._fresh.discard(proc)
        with suppress(OSError):
            os.unlink(address.page_path(self._directory, proc))

    def _poll(self) -> None:
        for proc, rank in list(self._supervisor.ranks.items()):
            if rank.state == ProcState.RUNNING:
                self._read_page(proc)

    def does_other(self, proc: int, cell: int) -> bool:
        """Say whether a rank's main thread is busy with other work than a given cell, which waits behind
        it.
        """
        fd = self._page_of(proc)
        slots = read_page(os.pread(fd, PAGE_BYTES, 0), os.pread(fd, PAGE_BYTES, 0)) if fd >= 0 else None
        main = next((slot for slot in slots or () if slot.is_main and slot.state == BUSY), None)
        return main is not None and (main.name, main.origin) != (CELL, cell)

    def _page_of(self, proc: int) -> int:
        """Return a descriptor of a rank's activity page, -1 if it has none yet."""
        if proc not in self._pages:
            try:
                path = address.page_path(self._directory, proc)
                self._pages[proc] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return -1
        return self._pages[proc]

    def _read_page(self, proc: int) -> None:
        fd = self._page_of(proc)
        if fd < 0:
            return
        data = os.pread(fd, PAGE_BYTES, 0)
        if data != self._last.get(proc):
            slots = read_page(data, os.pread(fd, PAGE_BYTES, 0))
            if slots is not None:
                self._last[proc] = data
                row = self._with_activity(proc, slots)
                self._put(proc, replace(row, transfers=tuple(Transfers(*each) for each in read_totals(data))))
        elif self._row(proc).was_brief:
            self._put(proc, self._with_activity(proc, read_page(data) or []))

    def _with_activity(self, proc: int, slots: list[Activity]) -> MonitoredRank:
        """Return a rank's row with its activity; while the state is watched, a rank that was busy since the
        last look counts as busy, however short its calls are.
        """
        counts = tuple(slot.num_changes for slot in slots)
        before = self._counts.get(proc, counts)
        self._counts[proc] = counts
        stopped = next((s for s in slots if s.state == DEBUGGING), None)
        busy = [s for s in slots if s.state == BUSY]
        brief = [
            s
            for i, s in enumerate(slots)
            if self._watched and i < len(before) and s.num_changes != before[i] and s.state != BUSY and s.name
        ]
        now = next(iter([*([stopped] if stopped else []), *busy, *brief]), None)
        others = len(busy) - 1
        main = slots[0] if slots and slots[0].is_main else None
        return replace(
            self._row(proc),
            busy=now is not None,
            debugging=stopped is not None,
            doing="" if now is None else _name(now) + (f" and {others} more" if others > 0 else ""),
            is_cell=now is not None and now.name == CELL,
            is_before_cells=main is not None and main.state != IDLE and main.name != CELL,
            since=0.0 if now is None else now.since,
            was_brief=not busy and bool(brief),
        )

    # --- samples

    def _sample(self, num_pss: int, then: Callable[[], None] | None = None) -> None:
        ranks = [r for r in self._supervisor.ranks.values() if r.state == ProcState.RUNNING and r.pid]
        pids = [r.pid for r in ranks]
        first, self._next_pss = self._next_pss, self._next_pss + num_pss
        with_memory = {pids[i % len(pids)] for i in range(first, first + num_pss)} if pids else set()

        def done(sample: Sample) -> None:
            gpus = self._take_processes(sample, ranks)
            self._take_sample(replace(sample.host, gpus=gpus))
            if then is not None:
                then()

        self._sampler.ask(pids, list(with_memory), done)

    def _take_processes(self, sample: Sample, ranks: list[Rank]) -> tuple[GpuStatus, ...]:
        """Read the use of resources by ranks; return the GPUs, with the ranks that use them."""
        by_pid = {r.pid: r for r in ranks}
        gpus = tuple(_with_ranks(gpu, by_pid) for gpu in sample.host.gpus)
        used = _gpu_memory(gpus, by_pid)
        for rank in ranks:
            if self._supervisor.ranks.get(rank.proc) is rank and rank.state == ProcState.RUNNING:
                row = self._row(rank.proc)
                found = sample.processes.get(rank.pid, NOTHING_READ)
                if found.cpu_percent is not None:
                    row = replace(row, cpu_percent=found.cpu_percent)
                if found.memory_bytes is not None:
                    row = replace(row, memory_bytes=found.memory_bytes)
                if gpus:
                    row = replace(row, gpus=_gpus_of(rank, gpus), gpu_memory_bytes=used.get(rank.proc))
                self._put(rank.proc, row)
        return gpus

    def _take_sample(self, host: MonitoredHost) -> None:
        now = time.monotonic()
        if now >= self._next_history:
            self._next_history = now + HISTORY_S - SAMPLE_S / 2
            rates = [g.utilization_percent for g in host.gpus if g.utilization_percent is not None]
            memory = 100.0 * (host.memory_used_bytes or 0) / (host.memory_total_bytes or 1)
            self._history.append(
                (host.cpu_percent, round(memory, 1), sum(rates) / len(rates) if rates else None)
            )
        cpu, memories, gpu = zip(*self._history, strict=True) if self._history else ((), (), ())
        self._tell(replace(host, history=History(HISTORY_S, cpu, memories, gpu)))

    # --- where busy ranks stand

    def _ask_where(self) -> None:
        for proc, row in self._rows.items():
            if row.busy and proc not in self._asked:
                self._asked.add(proc)
                self._send(
                    proc,
                    wire.pack(
                        wire.CALL, src=self._me, dst=proc, ref=WHERE_REF, name=WhereNow.wire_name.encode()
                    ),
                )
            elif not row.busy and row.line:
                self._put(proc, replace(row, num_queued=0))
        self._check_answered()

    def answered(self, proc: int, payload: bytes | memoryview) -> None:
        """Handle a rank's answer about its place, and put it into the rank's row."""
        self._asked.discard(proc)
        if self._supervisor.ranks.get(proc) is not None and len(payload):
            found = decode(Standing, payload)
            row = self._row(proc)
            self._put(
                proc,
                replace(
                    row,
                    line=found.line,
                    collective=_since_before(found.collective, row.collective),
                    num_queued=found.num_queued,
                ),
            )
        self._check_answered()

    def _check_answered(self) -> None:
        if not self._asked:
            waiting, self._waiting = self._waiting, []
            for done in waiting:
                done()

    # --- telling

    def _row(self, proc: int) -> MonitoredRank:
        return self._rows.get(proc, UNMONITORED)

    def _put(self, proc: int, row: MonitoredRank) -> None:
        if not row.busy and (row.line or row.collective is not None):
            row = replace(row, line="", collective=None)
        if self._rows.get(proc) != row:
            self._rows[proc] = row
            self._fresh.add(proc)

    def _tell(self, host: MonitoredHost | None) -> None:
        rows = {proc: self._rows[proc] for proc in self._fresh if proc in self._rows}
        self._fresh.clear()
        if rows or host is not None:
            self._on_change(rows, host)


def _name(activity: Activity) -> str:
    return f"cell #{activity.origin}" if activity.name == CELL else activity.name


def _since_before(now: Collective | None, before: Collective | None) -> Collective | None:
    """Return the operation that a rank is in, with the time at which it was first seen there."""
    if now is None or before is None or (before.name, before.sequence) != (now.name, now.sequence):
        return now
    return replace(now, since=before.since)


def _with_ranks(gpu: GpuStatus, by_pid: dict[int, Rank]) -> GpuStatus:
    """Return a GPU whose processes are labelled with their ranks."""
    return replace(
        gpu,
        processes=tuple(replace(p, rank=by_pid[p.pid].rank) if p.pid in by_pid else p for p in gpu.processes),
    )


def _gpu_memory(gpus: Sequence[GpuStatus], by_pid: dict[int, Rank]) -> dict[int, int]:
    """Return the number of bytes that ranks use on GPUs, by proc."""
    used: dict[int, int] = {}
    for process in (p for gpu in gpus for p in gpu.processes if p.pid in by_pid):
        proc = by_pid[process.pid].proc
        used[proc] = used.get(proc, 0) + (process.memory_bytes or 0)
    return used


def _gpus_of(rank: Rank, gpus: Sequence[GpuStatus]) -> tuple[int, ...]:
    """Return the indices of the GPUs that a rank was given, or else of those that it uses."""
    given = tuple(g.index for g in gpus if rank.gpu and rank.gpu in (str(g.index), g.uuid))
    return given or tuple(
        g.index for g in gpus if any(p.rank == rank.rank and p.pid == rank.pid for p in g.processes)
    )
