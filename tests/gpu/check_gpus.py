"""All that needs a GPU, in one command: `make gpu`, or `python tests/gpu/check_gpus.py`. Needs torch with
CUDA and what this package needs; no pytest, no network.

A check that hangs, or takes its process down, has failed, and the others go on in another process. Nothing
takes more than ten minutes in all. What each shows, and what had to be left out on this machine, is said at
the end; the exit status is 0 if nothing has failed. Without an NVIDIA GPU it says so in one line, and ends
with 0.

    --only NAME ...   some checks; --list names them
    --rehearse        in host memory and with gloo: shows that the checks run, not that GPUs work
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

HERE = Path(__file__).parent
TOTAL_S = 600.0
CHECK_S = 120.0
ANSWER_FD = "MONARCH_NB_GPU_ANSWER_FD"
HELD, FAILED, LEFT_OUT = "held", "FAILED", "left out"
_EXIT_WITHOUT_CUDA = 2
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Outcome:
    """How a check ended; `text`: figures, or why not; `details`: the traceback; `is_last`: of its process."""

    state: str
    text: str = ""
    details: str = ""
    seconds: float = 0.0
    is_last: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(description="Check all that needs a GPU.")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--checks", default="gpu_checks", metavar="MODULE", help=argparse.SUPPRESS)
    parser.add_argument("--total-s", type=float, default=TOTAL_S, help=argparse.SUPPRESS)
    parser.add_argument("--check-s", type=float, default=CHECK_S, help=argparse.SUPPRESS)
    parser.add_argument("--these", nargs="+", metavar="NAME", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if not (asked.rehearse or asked.these or asked.list):
        missing = why_no_gpu()
        if missing:
            print(missing[0])
            return missing[1]
    sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "rdma")]
    if asked.these:
        return _run_these(asked.checks, asked.these)
    importlib.import_module(asked.checks)
    from gpu_rig import CHECKS

    unknown = sorted(set(asked.only) - set(CHECKS))
    if unknown:
        parser.error(f"there is no check {unknown[0]}; there are {', '.join(CHECKS)}")
    names = asked.only or list(CHECKS)
    if asked.list:
        print("\n".join(f"{name:<28} {CHECKS[name].words}" for name in names))
        return 0
    print(_headline(rehearses=asked.rehearse), flush=True)
    runner = Runner(asked.checks, asked.total_s, asked.check_s, rehearses=asked.rehearse)
    outcomes = {}
    for name, outcome in runner.run(names):
        outcomes[name] = outcome
        print(_line(CHECKS[name].words, outcome), flush=True)
    return _conclude(outcomes, runner.seconds)


def why_no_gpu() -> tuple[str, int] | None:
    """Return what to say where no GPU can be used, and the exit status: 0 if there is none, 2 if one is
    there. None: one can be used.
    """
    torch = _imported("torch")
    if torch is not None and torch.cuda.is_available():
        if _imported("monarch_nb") is None:
            return (
                f"monarch_nb isn't installed in {sys.prefix}: {sys.executable} -m pip install .",
                _EXIT_WITHOUT_CUDA,
            )
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES={visible} hides all GPUs: no GPU was checked", 0
    if not _driver_has_gpus():
        return "no NVIDIA GPU on this machine: no GPU was checked", 0
    found = (
        "there is no torch"
        if torch is None
        else f"torch {torch.__version__} can't use it (built for CUDA: {torch.version.cuda or 'none'})"
    )
    return (
        f"there is an NVIDIA GPU, but {found} in {sys.prefix}: install a build with CUDA that fits "
        "the driver, or name the Python that has one: make gpu GPU_PYTHON=...",
        _EXIT_WITHOUT_CUDA,
    )


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _driver_has_gpus() -> bool:
    with suppress(OSError):
        return bool(os.listdir("/proc/driver/nvidia/gpus"))
    return False


def _headline(*, rehearses: bool) -> str:
    if rehearses:
        return "a rehearsal in host memory: no GPU is checked"
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return (
        f"torch {torch.__version__}, CUDA {torch.version.cuda}; {len(names)} "
        f"GPU{'s' * (len(names) != 1)}: {', '.join(dict.fromkeys(names))}"
    )


def _line(words: str, outcome: Outcome) -> str:
    text = f": {outcome.text}" if outcome.text else ""
    return f"{outcome.state:<9} {outcome.seconds:>5.1f} s  {words}{text}"


def _conclude(outcomes: dict[str, Outcome], seconds: float) -> int:
    """Print tracebacks of what failed, and the sum; return the exit status."""
    failed = {name: o for name, o in outcomes.items() if o.state == FAILED}
    for name, outcome in failed.items():
        print(f"\n--- {name}\n{outcome.details or outcome.text}".rstrip())
    num = {state: sum(1 for o in outcomes.values() if o.state == state) for state in (HELD, FAILED, LEFT_OUT)}
    print(f"\n{num[HELD]} held, {num[FAILED]} failed, {num[LEFT_OUT]} left out, in {seconds:.0f} s")
    if failed:
        print(f"again, these only: {sys.executable} {Path(__file__)} --only {' '.join(failed)}")
    return 1 if failed else 0


class Runner:
    """Runs checks one after the other until the time is up, in one process as long as that lives: it has
    imported torch, and has a mesh.

    One that takes the process down, or doesn't end, has failed; another process goes on with the next.
    Whatever is left of a process becomes a child of this one when it ends, and is ended.
    """

    def __init__(
        self, module: str, total_s: float = TOTAL_S, check_s: float = CHECK_S, *, rehearses: bool = False
    ) -> None:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._module = module
        self._total_s = total_s
        self._check_s = check_s
        self._environment = {"MONARCH_NB_GPU_REHEARSAL": "1"} if rehearses else {}
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def run(self, names: Sequence[str]) -> Iterator[tuple[str, Outcome]]:
        """Yield each check and how it ended."""
        left = list(names)
        while left:
            if self.seconds >= self._total_s:
                yield left.pop(0), Outcome(LEFT_OUT, f"the {self._total_s:g} s for all checks were over")
                continue
            with tempfile.TemporaryDirectory(prefix="monarch_nb-gpu-", ignore_cleanup_errors=True) as folder:
                for outcome in self._run_in(folder, left):
                    yield left.pop(0), outcome

    def _run_in(self, folder: str, names: Sequence[str]) -> Iterator[Outcome]:
        """Yield outcomes until all are known, or the process can't go on."""
        answers, theirs = os.pipe()
        log = Path(folder, "log")
        environment = {
            **os.environ,
            **self._environment,
            ANSWER_FD: str(theirs),
            "JUPYTER_RUNTIME_DIR": str(Path(folder, "runtime")),
            "JUPYTER_DATA_DIR": str(Path(folder, "data")),
        }
        command = [
            sys.executable,
            str(Path(__file__).absolute()),
            "--checks",
            self._module,
            "--these",
            *names,
        ]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=environment,
                pass_fds=[theirs],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
            )
        os.close(theirs)
        try:
            with open(answers, "rb") as file:
                ready = self._next(process, file, CHECK_S)  # it has imported what it needs
                if ready is not None and ready.is_last:
                    yield ready
                    return
                for _ in names:
                    outcome = self._next(process, file, self._check_s)
                    if outcome is None:
                        break
                    printed = log.read_text(errors="replace")[-20_000:]
                    yield replace(outcome, details=f"{outcome.details}\n--- printed so far:\n{printed}")
                    if outcome.is_last:
                        break
                else:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(10.0)
        finally:
            process.kill()
            process.wait()
            _end_orphans()

    def _next(self, process: subprocess.Popen[bytes], answers: BinaryIO, limit_s: float) -> Outcome | None:
        """Wait for the next answer; None: nothing was begun, for the time is up."""
        began = time.monotonic()
        limit_s = min(limit_s, self._total_s - self.seconds)
        if limit_s <= 0:
            return None
        if not select.select([answers], [], [], limit_s)[0]:
            process.send_signal(signal.SIGABRT)  # faulthandler says where it stands
            with suppress(subprocess.TimeoutExpired):
                process.wait(5.0)
            return Outcome(FAILED, f"not over after {limit_s:.0f} s", "", limit_s, is_last=True)
        line = answers.readline()
        seconds = time.monotonic() - began
        if not line:
            return Outcome(
                FAILED, f"its process ended with status {process.wait()}", "", seconds, is_last=True
            )
        return Outcome(**json.loads(line), seconds=seconds)


def _end_orphans() -> None:
    """End what a check has left behind."""
    import psutil

    for _ in range(3):  # what is ended may leave children of its own
        left = psutil.Process().children(recursive=True)
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, 10.0)


def _run_these(module: str, names: Sequence[str]) -> int:
    """Run checks in this process, and say of each how it ended."""
    import faulthandler

    faulthandler.enable()
    importlib.import_module(module)
    from gpu_rig import Rig

    rig = Rig(Path.cwd())
    with open(int(os.environ.pop(ANSWER_FD)), "wb", buffering=0) as answers:
        answers.write(json.dumps({"state": HELD}).encode() + b"\n")
        for name in names:
            answers.write(json.dumps(_outcome_of(rig, name)).encode() + b"\n")
        rig.close()
    return 0


def _outcome_of(rig: Any, name: str) -> dict[str, str]:
    from gpu_rig import LeftOut

    try:
        return {"state": HELD, "text": rig.run(name)}
    except LeftOut as why:
        return {"state": LEFT_OUT, "text": str(why)}
    except BaseException as error:
        first = (str(error) or "").strip().partition("\n")[0][:200]
        return {
            "state": FAILED,
            "text": f"{type(error).__name__}: {first}",
            "details": traceback.format_exc(),
        }


if __name__ == "__main__":
    sys.exit(main())
