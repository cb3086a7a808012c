"""Lines that actors of 8 ranks print, seen by whoever reads the program's output, beside bare processes.

There are two floors, since they promise different things. Bare processes whose output is a pipe collect 8 KiB
before they write: a process that crashes takes its last lines along. With `line_buffering`, as on a terminal,
each line leaves at once; so do the lines of ranks. The three run in an order drawn anew, several times.

Ranks' interpreter loads more modules when it has nothing to do: few of them here, and the first rounds, while
it does, aren't counted. It would take one of two processors from all that's measured.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from monarch_nb.actor import Actor, current_rank, endpoint, shutdown_context, this_host

RANKS = 8
LINES = 10_000
"""Of each rank."""
ROUNDS, FIRST_ROUNDS = 21, 8
_LINE = re.compile(rb"L\d+:\d+#$", re.MULTILINE)
_AT_ONCE = 1 << 20


def print_lines(rank: int, num: int) -> None:
    """Print `num` lines that say whose they are."""
    for i in range(num):
        print(f"L{rank}:{i}#")


class Printer(Actor):
    @endpoint
    def print_lines(self, num: int) -> None:
        print_lines(current_rank().rank, num)


class Printing:
    """Processes that print when they are told, into one pipe."""

    def __init__(self, roles: list[str]) -> None:
        self._output, theirs = os.pipe()
        self._processes = [
            subprocess.Popen(
                [sys.executable, __file__, *role.split()],
                stdin=subprocess.PIPE,
                stdout=theirs,
                env={**os.environ, "MONARCH_NB_PRELOAD": "torch"},
            )
            for role in roles
        ]
        os.close(theirs)
        data = b""
        while data.count(b"ready") < len(roles):
            data += self._read()

    def _read(self) -> bytes:
        data = os.read(self._output, _AT_ONCE)
        if not data:
            raise SystemExit("all processes have ended before their lines came")
        return data

    def seconds(self) -> float:
        """Return the seconds until all lines of one round have been read."""
        start = time.perf_counter()
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        missing, rest = RANKS * LINES, b""
        while missing:
            data = rest + self._read()
            end = data.rfind(b"\n") + 1
            missing -= len(_LINE.findall(data[:end]))
            rest = data[end:]
        return time.perf_counter() - start

    def close(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
        os.close(self._output)


def answer(on_go: Callable[[], object]) -> None:
    """Do `on_go` for each line of the input."""
    print("ready", flush=True)
    for _ in sys.stdin:
        on_go()
        sys.stdout.flush()


def run_bare(rank: int, *, line_buffering: bool) -> None:
    sys.stdout.reconfigure(line_buffering=line_buffering, write_through=False)  # type: ignore[union-attr]
    answer(lambda: print_lines(rank, LINES))


def run_ours() -> None:
    procs = this_host().spawn_procs({"gpus": RANKS})
    asyncio.run(procs.logging_option(stream_to_client=True, aggregate_window_sec=None))
    printer = procs.spawn("printer", Printer)
    printer.print_lines.call(0).get()
    answer(lambda: printer.print_lines.call(LINES).get())
    shutdown_context().get()


def measure() -> tuple[list[float], list[float], list[float]]:
    """Return the seconds of each round: ours, bare processes that write lines, such that write 8 KiB."""
    ours = Printing(["ours"])
    by_line = Printing([f"line {i}" for i in range(RANKS)])
    by_block = Printing([f"block {i}" for i in range(RANKS)])
    all_three = (ours, by_line, by_block)
    rounds = []
    for _ in range(FIRST_ROUNDS + ROUNDS):
        seconds = {each: each.seconds() for each in random.sample(all_three, 3)}
        rounds.append([seconds[each] for each in all_three])
    for each in all_three:
        each.close()
    first, second, third = (list(column) for column in zip(*rounds[FIRST_ROUNDS:], strict=True))
    return first, second, third


def main() -> None:
    ours, by_line, by_block = (statistics.median(column) for column in measure())
    print(f"{RANKS * LINES:,} lines of {RANKS} actors: {ours:.3f} s")
    print(f"bare processes, line by line: {by_line:.3f} s, {ours / by_line:.2f}x")
    print(f"bare processes, by 8 KiB: {by_block:.3f} s, {ours / by_block:.2f}x")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ours"]:
            from bench_lines import Printer, run_ours  # so that ranks find the class by its module

            run_ours()
        case ["line" | "block" as how, rank]:
            run_bare(int(rank), line_buffering=how == "line")
        case _:
            main()
