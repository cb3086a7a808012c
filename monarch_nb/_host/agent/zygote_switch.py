"""Replaces the zygote by one in another environment, as soon as that one is ready."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from contextlib import suppress

from monarch_nb._host.loop import Loop
from monarch_nb._host.warming import Zygote, start_zygote
from monarch_nb._protocol.environment import RankEnvironment
from monarch_nb._protocol.rank_spec import OwnSpec, SharedSpec
from monarch_nb._protocol.states import StartMethod


class ZygoteSwitch:
    """The replacement of one zygote by another, while it is under way. Owned by the loop thread.

    Args:
        over: called when the switch is over, before `done`.
        done: called with the error text; empty on success.

    Attributes:
        zygote: the new zygote, once it is up.
        held: descriptors whose locks keep the environment from being removed.
        waiting: ranks that were requested meanwhile.
    """

    def __init__(
        self,
        loop: Loop,
        directory: str,
        environment: RankEnvironment,
        over: Callable[[ZygoteSwitch], None],
        done: Callable[[str], None],
    ) -> None:
        self.environment = environment
        self.zygote: Zygote | None = None
        self.held: list[int] = []
        self.waiting: list[tuple[list[OwnSpec], SharedSpec, StartMethod]] = []
        self._loop = loop
        self._directory = directory
        self._over = over
        self._done = done

    def start_zygote(self) -> None:
        """Start the zygote."""
        try:
            self._hold()
            zygote = start_zygote(list(self.environment.path), self._directory, self.environment, self.held)
        except OSError as error:
            self._end_switch(f"{error.filename or self.environment.python}: {error.strerror}")
            return
        self._loop.watch_file(zygote.link.fileno(), lambda: self._on_answer(zygote))

    def _hold(self) -> None:
        """Keep the environment from being removed while processes run in it: the zygote and its forks inherit
        the lock.
        """
        if self.environment.lock:
            fd = os.open(self.environment.lock, os.O_RDONLY | os.O_CLOEXEC)
            self.held.append(fd)
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            with suppress(OSError):
                os.utime(fd)

    def _on_answer(self, zygote: Zygote) -> None:
        try:
            data = zygote.link.recv(65536)
        except OSError:
            data = b""
        self._loop.forget_file(zygote.link.fileno())
        if data and "ready" in json.loads(data):
            self.zygote = zygote
            self._end_switch("")
            return
        zygote.link.close()
        self._end_switch(
            f"{self.environment.python} ended with status {zygote.process.wait()} before it could fork ranks"
        )

    def _end_switch(self, problem: str) -> None:
        if problem:
            for fd in self.held:
                os.close(fd)
            self.held = []
        self._over(self)
        self._done(problem)
