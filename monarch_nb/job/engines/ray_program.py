"""The program that asks Ray, `ray_driver`, which is kept a while for the next question.

To start it takes more than a second of processor time, and to ask takes a hundredth: who waits for hosts asks
once a second. It ends by itself when nobody asks, and when the program that has started it ends.
"""

from __future__ import annotations

import json
import os
import queue
import tempfile
import threading
import time
from contextlib import suppress

from monarch_nb._client.ssh import Done
from monarch_nb.job.engines import shell
from monarch_nb.job.engines.base import EngineError, NoAnswer

DRIVER_S = 60.0
_DRIVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ray_driver.py")


class _Ended(EngineError):
    """The error of a program that has ended without an answer; its text is what it has written last."""


class _Program:
    """A running `ray_driver`, which one thread at a time asks."""

    def __init__(self, python: str) -> None:
        self._argv = [python, "-P", _DRIVER]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the program
        self._process = shell.start(self._argv, self._errors)
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="monarch_nb-ray", daemon=True).start()

    def _read(self) -> None:
        """Pass answers on until the program has ended, and leave no zombie of it."""
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                self._answers.put(line.decode())
        self._process.wait()
        self._answers.put(None)

    def ask(self, text: str, deadline: float) -> str | None:
        """Return the answer to a request; None if the program had ended before, since nobody had asked.

        Raises:
            NoAnswer: if there's no answer in time.
            _Ended: if the program has failed.
        """
        assert self._process.stdin is not None
        try:
            with suppress(BrokenPipeError):  # it has ended: `_read` says so
                self._process.stdin.write(f"{text}\n".encode())
                self._process.stdin.flush()
            answer = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            self._process.kill()
            raise NoAnswer(f"{' '.join(self._argv)} has given no answer within {DRIVER_S:g} s") from None
        except BaseException:  # Ctrl-C: the next question's answer would be this one's
            self._process.kill()
            raise
        if answer is None and self._process.returncode != 0:
            self._errors.seek(0)
            done = Done(self._process.returncode, "", self._errors.read().decode(errors="replace"))
            raise _Ended(done.words)
        return answer

    def close(self) -> None:
        """Let the program end."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def wait(self) -> None:
        """Wait until the program has ended."""
        self._process.wait()


_idle: dict[tuple[int, str, str], _Program] = {}
"""Programs that nobody asks at present, by process (a fork has none), interpreter and address of Ray."""


def ask(python: str, request: dict[str, object], *, is_repeatable: bool) -> str:
    """Return the answer to a request, as JSON.

    Args:
        python: an interpreter that has ray.
        is_repeatable: whether Ray may be asked twice: if a program ends that was connected before, a new one
            is asked, as Ray itself may have been started anew since.

    Raises:
        EngineError: if there is none, with Ray's message.
    """
    text, key = json.dumps(request), (os.getpid(), python, str(request["address"]))
    deadline = time.monotonic() + DRIVER_S
    while True:
        kept = _idle.pop(key, None)
        program = kept or _Program(python)
        try:
            answer = program.ask(text, deadline)
        except _Ended as error:
            if kept and is_repeatable:
                continue
            raise EngineError(f"ray at {request['address']}: {error}") from None
        if answer is not None:
            if _idle.setdefault(key, program) is not program:  # another thread has asked meanwhile
                program.close()
            return answer
        if not kept:
            raise EngineError(f"ray at {request['address']}: {python} has ended without an answer")


def close_idle() -> None:
    """End the programs that nobody asks at present, as they would end by themselves a while later."""
    while _idle:
        program = _idle.popitem()[1]
        program.close()
        program.wait()
