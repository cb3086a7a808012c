"""Whatever a cell does, it ends: the rank answers and lives, and what it broke is named and mended for the
next cell.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kernels import Notebook, Signal

ALIVE = "[0] ('alive', 0)\n[1] ('alive', 1)"


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    opened = Notebook()
    opened.run("%load_ext monarch_nb")
    assert "is ready" in opened.text(f"%mesh start nasty{uuid.uuid4().hex[:6]} --gpus 2")
    opened.run("%%mesh\nimport os, signal, sys, threading, time\nfrom IPython.display import display")
    yield opened
    assert "has ended" in opened.text("%mesh stop")
    opened.close()


@pytest.fixture
def run(notebook: Notebook) -> Iterator[Callable[[str], str]]:
    """Run a nasty cell; then plain ones must do."""
    yield lambda source: _steady(notebook.text(f"%%mesh --timeout 30\n{source}"))
    assert (
        _steady(notebook.text("%%mesh --timeout 30\nprint('alive')\n('alive', rank)"))
        == f"[0-1] alive\n{ALIVE}"
    )


def _steady(text: str) -> str:
    """Leave out what depends on time."""
    return "\n".join(
        line
        for line in text.splitlines()
        if not line.startswith("time: ") and "raised between two cells" not in line
    )


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (
            "class Tee:\n    def write(self, text): sys.__stdout__.write(text)\n"
            "sys.stdout = Tee()\nprint('through')",
            "[0-1] through",
        ),
        ("sys.stdout = sys.__stdout__\n'back'", "[0-1] 'back'"),
        ("sys.stdout = None\nprint('gone')", "[0-1] sys.stdout was None: it is the rank's own again"),
        ("os.close(1)\nprint('x')\n5",
         "[0-1] x\n[0-1] descriptor 1 was closed: it leads to the cell's output again\n[0-1] 5"),
        (
            "os.dup2(os.open('/dev/null', os.O_WRONLY), 1)\nprint('lost')",
            "[0-1] descriptor 1 was redirected: it leads to the cell's output again",
        ),
        ("os.set_blocking(1, False)\nprint('x' * 4_000_000 + '\\r', end='')\nprint('end')", "[0-1] end"),
        ("display({'text/html': 5}, raw=True)", "[0-1] <text/html not shown: expected text, not int>"),
        (
            "display({'application/json': {(1, 2): 3}}, raw=True)",
            ("[0-1] <application/json not shown: TypeError: keys must be str, int, float, bool or "
             "None, not tuple>"),
        ),
        (
            "class Shown:\n    def _repr_mimebundle_(self, **_):\n"
            "        return {'application/json': {'a': b'x'}, 'text/plain': 'shown'}\nShown()",
            ("[0-1] shown\n      <application/json not shown: TypeError: Object of type bytes is not "
             "JSON serializable>"),
        ),
        ("class Shown:\n    def _ipython_display_(self): print('by itself')\nShown()", "[0-1] by itself"),
        ("class Int:\n    def __repr__(self): return 5\nInt()",
         "[0-1] <Int object that can't be shown: TypeError: __repr__ returned non-string (type int)>"),
        ("print('a')\nsys.exit(0)\nprint('b')", "[0-1] a"),
        ("!true\nsys.exit()", ""),
        (
            "print('a')\nquit()",
            "[0-1] a\n[0-1] quit() ends this cell; the rank lives on, and so do its variables. "
            "To end the mesh: %mesh stop (in a terminal: monarch-nb stop)",
        ),
        ("exit", "[0-1] quit() and exit() end the cell. To end the mesh: %mesh stop"),
        ("import tempfile\ngone = tempfile.mkdtemp()\nos.chdir(gone)\nos.rmdir(gone)\n'here'",
         "[0-1] 'here'"),
        ("os.chdir('/tmp')\nsys.setrecursionlimit(60)", ""),
        ("sys.setrecursionlimit(1000)\nsys.excepthook = lambda *_: 1 / 0\nsys.settrace(lambda *_: None)", ""),
        (
            "signal.signal(signal.SIGINT, signal.SIG_IGN)\n'deaf'",
            ("[0-1] the handler of SIGINT was replaced: the rank's own is back, by which cells are "
             "interrupted\n[0-1] 'deaf'"),
        ),
        (
            "import builtins\nfor name in ('len', 'isinstance', 'str', 'print'): delattr(builtins, name)",
            "[0-1] builtins were deleted: isinstance, len, print, str: they are back",
        ),
    ],
)  # fmt: skip
def test_it_ends_well_and_is_mended(run: Callable[[str], str], source: str, shown: str) -> None:
    assert run(source) == shown


def test_modules_that_were_taken_away_are_back(run: Callable[[str], str]) -> None:
    assert "modules were taken out of sys.modules: IPython, " in run("sys.modules.clear()")
    assert "ERROR" not in run("import json\n!true")


def test_a_flush_that_raises_is_told_once(run: Callable[[str], str]) -> None:
    source = (
        "class Deaf:\n    def write(self, text): pass\n    def flush(self): raise OSError('no')\n"
        "sys.stdout = Deaf()"
    )
    assert run(source) == "[0-1] sys.stdout is Deaf, whose flush raised OSError: no"
    assert run("6") == "[0-1] 6"
    assert run("sys.stdout = sys.__stdout__") == ""


@pytest.mark.parametrize(
    ("source", "pattern"),
    [
        ("class E(BaseException):\n    def __str__(self): raise self\n    __repr__ = __str__\nraise E",
         "E: <E object: its __str__ raised itself>"),
        ("class E(Exception):\n    def __str__(self): raise ValueError('str')\nraise E",
         "E: <E object: its __str__ raised ValueError: str>"),
        ("class E(Exception):\n    def __reduce__(self): raise SystemExit(4)\nraise E('reduced')",
         "E: reduced"),
        ("raise ExceptionGroup('both', [ValueError(1), TypeError(2)])",
         r"(?s)ExceptionGroup: both.*ValueError: 1.*TypeError: 2"),
        ("def f(n): return g(n + 1)\ndef g(n): return f(n + 1)\nf(0)",
         r"(?s)RecursionError.*[0-9]+ frames left out in the middle.*in f\(n\)"),
        ("sys.exit(3)", "SystemExit: 3"),
        ("sys.exit('no data')", "SystemExit: no data"),
        ("exit(4)", "SystemExit: 4"),
        ("raise ValueError('lone \\ud800')", r"ValueError: lone \\ud800"),
        ("sys.stderr = None\n1 / 0",
         r"(?s)sys.stderr was None: it is the rank's own again.*ZeroDivisionError"),
        ("sys.settrace(lambda *_: 1 / 0)\nlen('')", "ZeroDivisionError"),
    ],
)  # fmt: skip
def test_it_fails_and_says_why(run: Callable[[str], str], source: str, pattern: str) -> None:
    text = run(source)
    assert "ERROR the cell failed on 2 of 2 ranks" in text
    assert re.search(pattern, text), text


def test_a_repr_that_raises_is_named(run: Callable[[str], str]) -> None:
    text = run("class R:\n    def __repr__(self): raise ValueError('no repr')\nR()")
    assert "[0-1] <R object that can't be shown: ValueError: no repr>" in text
    assert re.search(r"Cell In\[\d+\], line 2, in __repr__", text) and "/IPython/" not in text


def test_what_is_huge_is_cut(notebook: Notebook, run: Callable[[str], str]) -> None:
    for source in (
        "raise ValueError('x' * 20_000_000)",
        "'y' * 20_000_000",
        "display({'text/html': 'z' * 20_000_000}, raw=True)",
    ):
        run(source)
        size = len(str(notebook.cells[-1].outputs))
        assert size < 300_000, source
        assert re.search(
            r"characters left out; (on the rank, str|%%mesh --output)|8 MiB are the limit; %%mesh",
            str(notebook.cells[-1].outputs),
        )


def test_a_signal_handler_that_raises_between_cells(run: Callable[[str], str], tmp_path: Path) -> None:
    ticks = [Signal(tmp_path / f"tick{rank}") for rank in (0, 1)]
    run(
        f"def tick(*_):\n    open({str(tmp_path)!r} + f'/tick{{rank}}', 'w').write('x')\n    raise "
        "RuntimeError('tick')\nsignal.signal(signal.SIGALRM, tick)\nthreading.Timer(0.5, "
        "signal.pthread_kill, [threading.main_thread().ident, signal.SIGALRM]).start()"
    )
    for tick in ticks:
        tick.wait()


def test_threads_that_print_for_ever(run: Callable[[str], str]) -> None:
    text = run(
        "stop = []\ndef spam():\n    while not stop: print('spam')\nthreading.Thread(target=spam, "
        "daemon=True).start()\n3"
    )
    assert text.endswith("[0-1] 3")
    run("stop.append(1)")


def test_objects_that_raise_when_they_go(run: Callable[[str], str]) -> None:
    assert "ValueError: del" in run("class D:\n    def __del__(self): raise ValueError('del')\nD() and None")


def test_a_script_that_raises_makes_the_cell_red(run: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def step():\n    1 / 0\n\nstep()\n")
    (tmp_path / "done.py").write_text("import sys\nloaded = 7\nsys.exit(0)\n")
    (tmp_path / "code.py").write_text("import sys\nsys.exit(5)\n")
    text = run(f"%run {tmp_path}/bad.py")
    assert (
        "ERROR the cell failed on 2 of 2 ranks" in text
        and "bad.py:2, in step()" in text
        and "monarch_nb/_rank" not in text
    )
    assert run(f"%run {tmp_path}/done.py\nloaded") == "[0-1] 7"
    assert "SystemExit: 5" in run(f"%run {tmp_path}/code.py")
    assert "ZeroDivisionError" in run(f"sys.path.insert(0, {str(tmp_path)!r})\n%run -m bad")


def test_vars_of_hostile_objects(notebook: Notebook, run: Callable[[str], str]) -> None:
    run(
        "from torch.nn import Linear\nclass Hostile:\n    @property\n    def __class__(self): raise "
        "RuntimeError('who?')\n    def __getattr__(self, name): raise ValueError(name)\nhostile = "
        "Hostile()"
    )
    text = notebook.text("%mesh vars")
    assert re.search(r"\[0-1\] +Linear +type .*torch.nn.modules.linear.Linear", text)
    assert re.search(r"\[0-1\] +hostile +Hostile .*can't be looked at: ValueError", text)


def test_an_actor_answers_too(notebook: Notebook, run: Callable[[str], str]) -> None:
    notebook.run(
        "from monarch_nb.actor import Actor, endpoint\n"
        "class Bad(Exception):\n    def __str__(self): raise self\n"
        "class Result:\n    def __reduce__(self): raise RecursionError('reduced')\n"
        "class Nasty(Actor):\n"
        "    @endpoint\n    def fail(self): raise Bad\n"
        "    @endpoint\n    def long(self): raise ValueError('x' * 20_000_000)\n"
        "    @endpoint\n    def result(self): return Result()\n"
        "    @endpoint\n    def fine(self): return 1\n"
        "nasty = mesh.spawn('nasty', Nasty)"
    )
    assert "Bad object: its __str__ raised itself" in notebook.text("nasty.fail.call().get(20)")
    text = notebook.text("nasty.long.call().get(20)")
    assert len(text) < 100_000 and "left out" in text
    assert "reduced" in notebook.text("nasty.result.call().get(20)")
    assert notebook.text("list(nasty.fine.call().get(20).values())") == "[1, 1]"
    notebook.run("nasty.stop().get()")


def test_a_rank_that_leaves_is_told_of(notebook: Notebook) -> None:
    text = notebook.text("%%mesh --ranks 1\nos._exit(3)")
    assert "the process exited with code 3" in text
    notebook.run("%mesh heal")
    assert notebook.text("%%mesh\n'alive', rank") == ALIVE
