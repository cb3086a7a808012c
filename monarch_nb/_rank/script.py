"""Runs a script as a program of its own in a rank that lives on: as `python` would run it, with torchrun's
environment.

The rank is warm: what the script imports of libraries is there already. All else is as in a fresh process
(`fresh`): `__main__`, argv, environment, modules of the user's, process groups, random state; afterwards it
is again as before, so that a script can be run any number of times.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
from collections.abc import Callable, Mapping
from types import ModuleType, TracebackType

from monarch_nb._frames.owner import Owner, owner_of_file
from monarch_nb._protocol.script import Script
from monarch_nb._rank import rendezvous
from monarch_nb._rank.elastic import elastic_variables, own_device
from monarch_nb._rank.fresh import ExitFunctions, fresh_process
from monarch_nb._transport.failure import set_trace, trace_of

_POLL_S = 0.2
"""Interval at which a wait for a thread of the script's checks whether the rank was interrupted."""


def run_script(script: Script, me: int, restore: Callable[[], None]) -> BaseException | None:
    """Run a script in this process, on its main thread; return its error, also a SystemExit.

    Args:
        me: which of the script's processes this one is.
        restore: called when the script's code is over, first of all.
    """
    try:
        return run_program(script, {**_elastic(script, me), **script.env}, restore)
    finally:
        if script.rendezvous is not None:
            rendezvous.close_after_run(script.rendezvous.port)


def run_program(script: Script, env: Mapping[str, str], restore: Callable[[], None]) -> BaseException | None:
    """Run a script as a program of its own in an environment; see `run_script`."""
    error: BaseException | None = None
    try:
        with fresh_process(env, script.workdir) as exit_functions:
            try:
                _run(script, exit_functions)
            finally:
                restore()
    except BaseException as raised:
        restore()
        error = raised
        set_trace(error, _of_the_script(trace_of(error)))
    return error


def exit_message(code: object) -> str:
    """Return the text of an error for an exit code.

    >>> exit_message(3), exit_message("no data")
    ('the script has exited with code 3', 'the script has exited with code 1: no data')
    """
    if isinstance(code, int):
        return f"the script has exited with code {int(code)}"
    return f"the script has exited with code 1: {code}"


def _elastic(script: Script, me: int) -> dict[str, str]:
    """Return the variables that torchrun would set for this process."""
    meeting = script.rendezvous or rendezvous.open_for_run()
    found = elastic_variables(script.procs, script.procs.index(me), meeting.address, meeting.port)
    return {
        **found,
        **own_device(),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": str(meeting.is_store),
    }


def _run(script: Script, exit_functions: ExitFunctions) -> None:
    """Run the script, and then Python's steps at a program's end: wait for its threads, then call its exit
    functions.
    """
    threads = set(threading.enumerate())
    try:
        _run_module(script) if script.is_module else _run_file(script)
    finally:
        _wait_for(set(threading.enumerate()) - threads)
        exit_functions.call()


def _run_file(script: Script) -> None:
    path = os.path.abspath(os.path.expanduser(script.target))
    sys.argv[:] = [script.target, *script.args]
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
        runpy.run_path(path, run_name="__main__")
        return
    source = _read(script.target, path)
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    code = compile(source, path, "exec", dont_inherit=True)
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main).update(__file__=path, __builtins__=sys.modules["builtins"], __cached__=None)
    exec(code, vars(main))


def _read(typed: str, path: str) -> bytes:
    """Return a script's source.

    Raises:
        FileNotFoundError, OSError: in words.
    """
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"there's no script {typed!r} in {os.getcwd()}. Name a file that is there on the ranks' machine; "
            "a module is run by %mesh run -m NAME"
        ) from None
    except OSError as error:
        raise OSError(f"the script {typed!r} can't be read: {error.strerror}") from None


def _run_module(script: Script) -> None:
    sys.path.insert(0, os.getcwd())
    sys.argv[:] = ["-m", *script.args]
    try:
        runpy.run_module(script.target, run_name="__main__", alter_sys=True)
    except ImportError as error:
        if "runpy" in _raised_in(error):  # not what the module itself imports
            raise ModuleNotFoundError(
                f"{error}: %mesh run -m takes a module that `python -m` in {os.getcwd()} would find"
            ) from None
        raise


def _raised_in(error: BaseException) -> str:
    trace = trace_of(error)
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else trace.tb_frame.f_code.co_filename


def _wait_for(threads: set[threading.Thread]) -> None:
    """Wait for threads as a program does at its end."""
    pools = sys.modules.get("concurrent.futures.thread")
    of_pools = getattr(pools, "_threads_queues", ())  # they wait for work until the process ends
    for thread in threads:
        while thread.is_alive() and not thread.daemon and thread not in of_pools:
            thread.join(_POLL_S)


def _of_the_script(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the script's first frame on."""
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _is_ours(file: str) -> bool:
    return "runpy" in file or owner_of_file(file) is Owner.PACKAGE
