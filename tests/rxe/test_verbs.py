"""The verbs path over Soft-RoCE, in a virtual machine: booted once, each check inside is a test here.

`MONARCH_NB_RXE=1`: it must run; otherwise it's skipped where it can't.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from pathlib import Path
from typing import Any

import inside
import pytest
from machine import CannotBoot, Machine, what_is_missing

import monarch_nb

HERE = Path(__file__).parent
LIMIT_S = 1500.0


def _skip(reason: str) -> None:
    if os.environ.get("MONARCH_NB_RXE") == "1":
        pytest.fail(f"MONARCH_NB_RXE=1, but {reason}")
    pytest.skip(reason)


def _machine() -> Machine:
    if reason := what_is_missing():
        _skip(reason)
    try:
        return Machine()
    except CannotBoot as error:
        _skip(str(error))
        raise


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run all checks; return what each has left, and what was printed."""
    faulthandler.cancel_dump_traceback_later()  # the machine may take longer than one test
    machine = _machine()
    job = tmp_path_factory.mktemp("rxe")
    folders = [Path(monarch_nb.__file__).parents[1], HERE]
    command = [sys.executable, str(HERE / "inside.py"), "/run/job/results.jsonl"]
    try:
        machine.run(command, job, folders, LIMIT_S)
        end = ""
    except CannotBoot as error:
        end = str(error)
    if end and not (job / "results.jsonl").exists():
        _skip(f"the virtual machine never came so far as to begin: {end}")
    output = job / "output.txt"
    printed = output.read_text(errors="replace")[-4000:] if output.exists() else ""
    lines = (job / "results.jsonl").read_text().splitlines() if (job / "results.jsonl").exists() else []
    found = {result["name"]: result for result in map(json.loads, lines)}
    return {**found, "": f"{printed}\n{end}"}


@pytest.mark.timeout(LIMIT_S + 120)
@pytest.mark.parametrize("name", list(inside.CHECKS))
def test_over_soft_roce(name: str, results: dict[str, Any], record_property: Any) -> None:
    assert name in results, f"it never ended; printed: {results['']}"
    found = results[name]
    record_property("detail", found["detail"])
    record_property("seconds", found["seconds"])
    print(f"{found['seconds']} s: {found['detail']}")
    assert found["ok"], f"{found['detail']}\n{results['']}"
