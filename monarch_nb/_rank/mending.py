"""Restores interpreter state that a rank needs and user code has changed: after each piece of work, with a
notice.

A cell may close descriptors, delete builtins, empty `sys.modules` or ignore signals. That is its own affair
until it ends; the next one, and the answer to this one, need these things.
"""

from __future__ import annotations

import builtins
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch_nb._rank.streams import OutputPipe

_COME_AND_GO = frozenset({"_", "exit", "quit"})
"""Builtins that IPython hides."""
_NEEDED = frozenset({"sys", "json", "os", "monarch_nb", "monarch_nb._rank", "monarch_nb._rank.worker"})
"""If one of these is missing, all previous modules are restored. Others are left to the user."""
_known_modules: dict[str, Any] = {}
"""Modules of this process, or of the zygote that it is a fork of."""


def note_modules() -> None:
    """Record modules that were imported since the last call. The zygote does so before it forks: a reference
    to an object writes to its page, and a rank with thousands would copy as many, at its start.

    The latest stand last in `sys.modules`, so those before the first known one are left alone.
    """
    latest = {}
    try:
        for name in reversed(sys.modules):
            if name in _known_modules and _known_modules[name] is sys.modules.get(name):
                break
            latest[name] = sys.modules[name]
    except (RuntimeError, KeyError):  # another thread is importing
        latest = dict(sys.modules)
    _known_modules.update(latest)


class Mender:
    """The component that restores the interpreter state that a rank needs, after user code has changed it.
    Owned by the main thread.

    Args:
        on_interrupt: the handler of SIGINT.
    """

    def __init__(self, pipe: OutputPipe, on_interrupt: Callable[[int, Any], None]) -> None:
        self._pipe = pipe
        self._on_interrupt = on_interrupt
        self._set_handler = signal.signal  # the original function
        self._builtins: dict[str, Any] = {}
        self._restored: set[str] = set()
        """Builtins that were restored and haven't been reported."""
        self.learn()

    def learn(self) -> None:
        """Record the present state."""
        self._builtins = {name: value for name, value in vars(builtins).items() if name not in _COME_AND_GO}
        note_modules()

    def restore_builtins(self) -> None:
        """Restore deleted builtins. It needs none itself."""
        missing = self._builtins.keys() - builtins.__dict__.keys()
        if missing:
            builtins.__dict__.update({name: self._builtins[name] for name in missing})
            self._restored |= missing

    def mend(self) -> list[str]:
        """Restore what is missing; return messages about it."""
        self.restore_builtins()
        found = []
        if self._restored:
            found.append(f"builtins were deleted: {_named(self._restored)}: they are back")
            self._restored = set()
        if not sys.modules.keys() >= _NEEDED:
            gone = _known_modules.keys() - sys.modules.keys()
            sys.modules.update({name: _known_modules[name] for name in gone})
            found.append(f"modules were taken out of sys.modules: {_named(gone)}: they are back")
        if signal.getsignal(signal.SIGINT) != self._on_interrupt:
            self._set_handler(signal.SIGINT, self._on_interrupt)
            found.append(
                "the handler of SIGINT was replaced: the rank's own is back, by which cells are interrupted"
            )
        return found + self._pipe.settle()


class UserHandler:
    """A wrapper of a user's signal handler. In a cell the handler may raise; between two cells, its errors
    are reported and not raised.
    """

    def __init__(
        self,
        function: Callable[[int, Any], Any],
        is_running: Callable[[], bool],
        tell: Callable[[BaseException], None],
    ) -> None:
        self.function = function
        self._is_running = is_running
        self._tell = tell

    def __call__(self, number: int, frame: Any) -> Any:
        if self._is_running():
            return self.function(number, frame)
        try:
            return self.function(number, frame)
        except BaseException as error:
            self._tell(error)
            return None


def guard_handlers(is_running: Callable[[], bool], tell: Callable[[BaseException], None]) -> None:
    """Wrap handlers that are set from now on as the user's, except the rank's own ones when they are
    restored.
    """
    original = signal.signal
    own = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def set_handler(signalnum: int, handler: Any) -> Any:
        is_users = callable(handler) and handler not in own
        before = original(signalnum, UserHandler(handler, is_running, tell) if is_users else handler)
        return before.function if isinstance(before, UserHandler) else before

    signal.signal = set_handler


def _named(names: set[str]) -> str:
    shown = sorted(names)[:4]
    return ", ".join(shown) + (f" and {len(names) - 4:,} more" if len(names) > 4 else "")
