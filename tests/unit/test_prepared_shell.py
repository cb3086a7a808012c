"""The shell that is made before ranks are forked: nothing of it is seen until a cell runs, and then it's
as one of the rank's own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import builtins, json, os, sys, threading, warnings
import monarch_nb._rank.main
import IPython.core.interactiveshell

def seen():
    return {
        "builtins": sorted(vars(builtins)), "sys": sorted(vars(sys)), "path": list(sys.path),
        "main": id(sys.modules["__main__"]), "hook": id(sys.displayhook),
        "filters": [str(f) for f in warnings.filters], "environment": dict(os.environ),
        "instance": IPython.core.interactiveshell.InteractiveShell._instance is None,
        "names": sorted(n for n in globals() if n != "before"),
    }

before = seen()
from monarch_nb._rank import interactive
before["names"].append("interactive"); before["names"].sort()
MAKING
assert seen() == before, {k: (v, before[k]) for k, v in seen().items() if v != before[k]}
assert threading.active_count() == 1
r, w = os.pipe()
if os.fork() == 0:
    os.environ.update(json.loads(sys.argv[1]))
    os.chdir("/")
    from monarch_nb._rank.shell import CellShell

    class Pipe:
        announced_widgets, streams, shown = False, {}, []
        def display(self, origin, content): self.shown.append(content)

    namespace = {"__name__": "__main__", "x": 20}
    shell = CellShell(namespace, Pipe(), lambda: None)
    sources = enumerate(json.loads(sys.argv[2]), 1)
    answers = [json.loads(shell.run(source, n)[0].as_json()) for n, source in sources]
    answers.append(len(Pipe.shown))
    os.write(w, json.dumps(answers, default=str).encode())
    os._exit(0)
os.close(w)
sys.stdout.write(open(r).read())
"""


def answers_of(
    *sources: str, making: str = "interactive.prepare()", environment: dict[str, str] | None = None
) -> list[object]:
    code = PROGRAM.replace("MAKING", making)
    command = [sys.executable, "-c", code, json.dumps(environment or {}), json.dumps(sources)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert run.returncode == 0 and run.stderr == "", run.stderr
    *cells, shown = json.loads(run.stdout)
    values = [c["value"]["text/plain"] if c["status"] == "ok" and c.get("value") else c for c in cells]
    return [*values, shown]


@pytest.mark.parametrize("making", ["interactive.prepare()", ""], ids=["prepared", "its own"])
def test_a_cell_finds_the_same_in_a_prepared_shell_and_in_its_own(making: str) -> None:
    found = answers_of(
        "x += 1; 2 * x",
        (
            "import __main__; __main__.x, get_ipython().user_ns is globals(), "
            "get_ipython().user_global_ns is globals()"
        ),
        "[n for n in ('__IPYTHON__', 'display', 'get_ipython') if not hasattr(__import__('builtins'), n)]",
        "hasattr(__import__('sys'), 'ps1'), _dh, Out, _",
        "__import__('IPython').get_ipython() is get_ipython()",
        "display(3)",
        "%pwd",
        "sorted(n for n in globals() if not n.startswith('_'))",
        making=making,
    )
    assert found == [
        "42",
        "(21, True, True)",
        "[]",
        "(False, [PosixPath('/')], {0: 42, 1: (21, True, True), 2: [], 3: (...)}, [])",
        "True",
        {"status": "ok"},
        "'/'",
        "['In', 'Out', 'exit', 'get_ipython', 'open', 'quit', 'x']",
        1,
    ]


def test_a_rank_with_another_environment_makes_its_own(tmp_path: object) -> None:
    folder = f"{tmp_path}/ipython"
    assert answers_of("get_ipython().ipython_dir", environment={"IPYTHONDIR": folder})[0] == repr(folder)


@pytest.mark.parametrize("making", ["interactive.prepare()", ""], ids=["prepared", "its own"])
def test_another_environment_that_is_active_is_not_told_in_the_first_cell(
    tmp_path: Path, making: str
) -> None:
    """As when somebody's shell has activated one environment, and starts another one's JupyterLab."""
    site = tmp_path / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    site.mkdir(parents=True)
    found = answers_of(
        f"{str(site)!r} in __import__('sys').path", making=making, environment={"VIRTUAL_ENV": str(tmp_path)}
    )
    assert found == ["True", 0]  # as in the notebook's own IPython
