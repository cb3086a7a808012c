"""The process behind `monarch-nb warm`: it keeps one controller of this environment warm for the next program
that starts a mesh.

When a program has taken the controller, the keeper warms up another one, and the time begins anew. At its
end, when it's told to end, or when it's killed, the controller that nobody has taken ends, too; those that
were taken go on. There's one keeper for each environment (`warm_key`): it holds a claim (`_wire/claim`),
whose note says where the controller is.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress

from monarch_nb._client import launch, warm_key
from monarch_nb._client.connection_file import Connection
from monarch_nb._host.controller.handover import TAKEN, WARM, socket_path
from monarch_nb._protocol.claims import KeeperNote
from monarch_nb._protocol.warm import Requirements
from monarch_nb._wire.claim import Claim
from monarch_nb._wire.process import machine_id, set_process_name, start_time
from monarch_nb.exceptions import MeshStartError

KEPT_ALREADY = 3
"""Exit status if another keeper holds the claim already."""
NEXT_S = 2.0
"""Pause after a program has taken a controller, in which it has the cores for itself, before the next
controller is warmed up.
"""
LOOK_S = 5.0
WARM_UP_S = 120.0
"""Limit for the warm-up of a controller; one that isn't warm by then is given up."""
MAX_FAILURES = 3
"""Number of controllers in a row that may end before they are warm."""
_END_S = 10.0


class Keeper:
    """The keeper process: holder of the claim, and owner of the warm controller until a program takes
    that.
    """

    def __init__(
        self, claim: Claim, path: str, requirements: Requirements, for_s: float, wait_s: float
    ) -> None:
        self._claim, self._path, self._requirements, self._for_s = claim, path, requirements, for_s
        self._controller: Connection | None = None
        self._handover: socket.socket | None = None
        self._is_warm = False
        self._failures = 0
        self._next_at = _now() + wait_s
        self._ends_at = self._next_at + WARM_UP_S + for_s
        self._looked_at = requirements.packages
        self._look_at = _now() + LOOK_S
        self._packages_have_changed = False
        self._should_end = False
        self.trouble = ""

    def run(self) -> None:
        """Keep a controller warm until the time is up, or until told to end; end the controller then."""
        wakeup_fd, wake_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
                signal.signal(number, self._on_signal)
        signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
        self._write_note()
        try:
            while self._goes_on():
                if self._controller is None and _now() >= self._next_at:
                    self._start()
                wanted = [wakeup_fd] if self._handover is None else [wakeup_fd, self._handover.fileno()]
                ready = select.select(wanted, [], [], self._wait_s())[0]
                if wakeup_fd in ready:
                    os.read(wakeup_fd, 64)
                elif ready:
                    self._receive_event()
        finally:
            self._end_controller()
            self._claim.release()

    def _on_signal(self, number: int, frame: object) -> None:
        self._should_end = True

    def _goes_on(self) -> bool:
        if self._failures >= MAX_FAILURES or not self._claim.holds:
            return False
        if _now() >= self._look_at:
            self._look_at_packages()
        return not self._should_end and _now() < self._ends_at and not self._packages_have_changed

    def _look_at_packages(self) -> None:
        """Check whether packages were installed, and that installation is finished: programs have another key
        since, and can't use the warm controller.
        """
        before, self._looked_at = self._looked_at, warm_key.requirements().packages
        self._packages_have_changed = self._looked_at == before != self._requirements.packages
        self._look_at = _now() + LOOK_S

    def _wait_s(self) -> float:
        limits = [self._ends_at, self._look_at, *([self._next_at] if self._controller is None else [])]
        return max(0.0, min(limits) - _now())

    def _start(self) -> None:
        try:
            self._controller = launch.start_controller(
                owner_pid=os.getpid(), warm_claim=self._path, requirements=self._requirements
            )
            handover = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            handover.connect(socket_path(self._controller.directory))
            self._handover = handover
        except (MeshStartError, OSError) as error:
            self._has_failed(str(error))

    def _receive_event(self) -> None:
        assert self._handover is not None and self._controller is not None
        try:
            event = self._handover.recv(64)
        except OSError:
            event = b""
        if event == WARM:
            self._is_warm, self._failures, self.trouble = True, 0, ""
            self._ends_at = _now() + self._for_s
        elif event == TAKEN:
            self._drop()
            self._next_at = _now() + NEXT_S
            self._ends_at = self._next_at + WARM_UP_S + self._for_s
        else:
            self._has_failed(
                f"the interpreter that was being warmed up has ended (pid {self._controller.pid})"
            )
        self._write_note()

    def _has_failed(self, why: str) -> None:
        self._end_controller()
        self._failures += 1
        self.trouble = why
        self._next_at = _now() + 1.0

    def _drop(self) -> None:
        """Drop the connection to a controller."""
        if self._handover is not None:
            self._handover.close()
        self._handover = self._controller = None
        self._is_warm = False

    def _end_controller(self) -> None:
        """End the controller, unless a program has just taken it: the controller decides that when the
        connection ends.
        """
        controller, handover = self._controller, self._handover
        if controller is None:
            return
        # the controller hasn't heard of this keeper yet, and nobody has heard of the controller
        if handover is None:
            with suppress(OSError):
                os.kill(controller.pid, signal.SIGTERM)
        if handover is None or not _hung_up_and_was_taken(handover):
            limit = time.monotonic() + _END_S
            while os.path.exists(f"/proc/{controller.pid}") and time.monotonic() < limit:
                time.sleep(0.01)
        self._drop()

    def _write_note(self) -> None:
        controller = None
        if self._is_warm and self._controller is not None:
            controller = (self._controller.pid, self._controller.start_time, self._controller.directory)
        note = KeeperNote(
            machine_id(), os.getpid(), start_time(os.getpid()), sys.executable,
            until=time.time() + self._ends_at - _now(), controller=controller,
        )  # fmt: skip
        self._claim.write(note.as_json())


def _hung_up_and_was_taken(handover: socket.socket) -> bool:
    """Tell a controller that its keeper ends; say whether a program was faster."""
    handover.settimeout(_END_S)
    with suppress(OSError):
        handover.shutdown(socket.SHUT_WR)
        while received := handover.recv(64):
            if received == TAKEN:
                return True
    return False


def _now() -> float:
    """Return a time that advances while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def main() -> None:
    """Run as a keeper; the arguments are JSON: `for_s`, `wait_s`. Readiness isn't signalled: the note in the
    claim file tells it.
    """
    arguments = json.loads(sys.argv[1])
    set_process_name("mnb-warm")
    requirements = warm_key.requirements()
    path = warm_key.claim_path(warm_key.key_of(requirements))
    claim = Claim.acquire(path)
    if claim is None:
        sys.exit(KEPT_ALREADY)
    keeper = Keeper(claim, path, requirements, arguments["for_s"], arguments["wait_s"])
    keeper.run()
    if keeper.trouble:
        print(keeper.trouble, file=sys.stderr)
        sys.exit(1)
