"""Makes a warm process look like a fresh one to a program, and removes afterwards the state that the program
has left.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import logging
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from _signal import (
    # not the function that user code calls, which would count the handlers as the user's
    signal as set_handler,
)
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from monarch_nb import _reload
from monarch_nb._frames.owner import Owner, is_users, owner_of_file
from monarch_nb._rank.fresh_accelerate import fresh_accelerate
from monarch_nb._rank.fresh_torch import fresh_torch
from monarch_nb._rank.random_numbers import fresh_random_numbers

_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGALRM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCHLD,
)
_OF_SYS = (
    "argv",
    "path",
    "stdin",
    "stdout",
    "stderr",
    "excepthook",
    "displayhook",
    "flags",
    "dont_write_bytecode",
)


@contextmanager
def fresh_process(env: Mapping[str, str], workdir: str) -> Iterator[ExitFunctions]:
    """Run the block as in a new process.

    Args:
        env: added to the environment.
        workdir: the working directory, if it's there.

    Yields:
        what the program registers with `atexit`; to be called when it's over.
    """
    exit_functions = ExitFunctions()
    with ExitStack() as stack:
        stack.callback(
            gc.collect
        )  # last: the program's models are freed before another program makes its own
        for keeper in (
            _directory(workdir), _environment(env), _interpreter(), _reload.imported_anew(), _loggers(),
            _handlers(), _garbage(), _start_method(), exit_functions.registered(), fresh_random_numbers(),
            fresh_torch(), fresh_accelerate(),
        ):  # fmt: skip
            stack.enter_context(keeper)
        yield exit_functions


class ExitFunctions:
    """The exit functions that a program has registered. Those of libraries stay registered until the process
    ends, since libraries stay loaded.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    @contextmanager
    def registered(self) -> Iterator[None]:
        """Collect the functions that the user's code registers within the block."""
        register, unregister = atexit.register, atexit.unregister

        def take(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Callable[..., Any]:
            if not is_users(sys._getframe(1)) and not _is_users(function):
                return register(function, *args, **kwargs)
            self._calls.append((function, args, kwargs))
            return function

        def drop(function: Callable[..., Any]) -> None:
            self._calls[:] = [call for call in self._calls if call[0] != function]
            unregister(function)

        atexit.register, atexit.unregister = take, drop
        try:
            yield
        finally:
            atexit.register, atexit.unregister = register, unregister

    def call(self) -> None:
        """Call them, the last one first; an error is printed, as Python does."""
        while self._calls:
            function, args, kwargs = self._calls.pop()
            try:
                function(*args, **kwargs)
            except Exception:
                traceback.print_exc()


def _is_users(function: Any) -> bool:
    while hasattr(function, "func"):  # a partial
        function = function.func
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and owner_of_file(code.co_filename) in (Owner.USER, Owner.EXECUTED)


@contextmanager
def _directory(workdir: str) -> Iterator[None]:
    before = os.getcwd()
    if os.path.isdir(workdir):
        os.chdir(workdir)
    try:
        yield
    finally:
        with suppress(OSError):  # it may have been removed
            os.chdir(before)


@contextmanager
def _environment(env: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(env)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


@contextmanager
def _interpreter() -> Iterator[None]:
    """Restore `__main__`, `sys`, builtins and the warnings' filters afterwards, which a program may
    change.
    """
    main, filters = sys.modules["__main__"], warnings.filters[:]
    before = {name: getattr(sys, name) for name in _OF_SYS}
    lists = {name: list(getattr(sys, name)) for name in ("argv", "path", "meta_path", "path_hooks")}
    leaving = {name: vars(builtins).get(name) for name in ("exit", "quit")}
    vars(builtins).update(exit=sys.exit, quit=sys.exit)
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        vars(sys).update(before)
        for name, items in lists.items():
            getattr(sys, name)[:] = items
        vars(builtins).update(leaving)
        for name in [name for name, value in leaving.items() if value is None]:
            del vars(builtins)[name]
        warnings.filters[:] = filters  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]


@contextmanager
def _loggers() -> Iterator[None]:
    """Restore loggers' handlers and levels at the end: otherwise each run would write each line once more."""
    before = {each: (each.handlers[:], each.level, each.propagate, each.disabled) for each in _all_loggers()}
    disabled = logging.root.manager.disable
    try:
        yield
    finally:
        logging.disable(disabled)
        for logger in _all_loggers():
            handlers, level, propagate, is_disabled = before.get(logger, ([], logging.NOTSET, True, False))
            for handler in [each for each in logger.handlers if each not in handlers]:
                with suppress(Exception):  # as `logging.shutdown` does: the handler's file may be closed
                    handler.flush()
            logger.handlers[:], logger.propagate, logger.disabled = handlers, propagate, is_disabled
            logger.setLevel(level)


def _all_loggers() -> list[logging.Logger]:
    known = [
        each for each in list(logging.root.manager.loggerDict.values()) if isinstance(each, logging.Logger)
    ]
    return [logging.root, *known]


@contextmanager
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) != handler:
                set_handler(number, handler)


@contextmanager
def _garbage() -> Iterator[None]:
    """Restore the settings of garbage collection afterwards: trainers switch it off, and a rank lives on."""
    was_on, thresholds = gc.isenabled(), gc.get_threshold()
    try:
        yield
    finally:
        (gc.enable if was_on else gc.disable)()
        gc.set_threshold(*thresholds)


@contextmanager
def _start_method() -> Iterator[None]:
    """Restore multiprocessing's start method afterwards: to set it twice is an error."""
    before = multiprocessing.get_start_method(allow_none=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)
