"""What a cell shows: folded, in order, in its own place, whatever way it was printed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kernels import FileLatch, Notebook, RawKernel

IS_BURST = "(type(sys.stdout.write).__name__ == 'builtin_function_or_method')"
"""Python that says whether a rank's lines take the way of many (`_rank/bursts`)."""


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    opened = Notebook()
    opened.run("%load_ext monarch_nb")
    assert "is ready" in opened.text("%mesh start loud --gpus 4")
    yield opened
    assert "has ended" in opened.text("%mesh stop loud")
    opened.close()


@pytest.fixture(scope="module")
def show(notebook: Notebook) -> Callable[[str], str]:
    return notebook.text


def test_equal_lines_fold_and_numbers_count(show: Callable[[str], str]) -> None:
    text = show("%%mesh\nprint('epoch 1')\nprint('loss', 0.5 if rank < 3 else 0.6)\nprint('done')")
    assert text.splitlines() == ["[0-3] epoch 1", "[0-2] loss 0.5", "[3] loss 0.6", "[0-3] done"]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "import threading\nt = threading.Thread(target=print, args=('thread',))\nt.start()\nt.join()",
            "thread",
        ),
        (
            "import subprocess\nsubprocess.run(['sh', '-c', 'echo child; echo err >&2'])\nNone",
            "child\n[0-3] err",
        ),
        ("import ctypes\nlibc = ctypes.CDLL(None)\nlibc.puts(b'from C')\nlibc.fflush(None)\nNone", "from C"),
        ("import os\nos.write(2, b'descriptor 2\\n')\nNone", "descriptor 2"),
        (
            "import sys\nprint('wide \\u6f22\\u5b57 \\U0001f600', file=sys.stderr)",
            "wide \u6f22\u5b57 \U0001f600",
        ),
        ("import warnings\nwarnings.warn('careful')", r"re:.*UserWarning: careful(.|\n)*"),
        ("import logging\nlogging.getLogger('x').warning('logged')", "logged"),
    ],
)
def test_all_ways_to_print(show: Callable[[str], str], source: str, text: str) -> None:
    shown = show(f"%%mesh\n{source}")
    if text.startswith("re:"):
        assert re.fullmatch(text[3:], shown)
    else:
        assert shown == f"[0-3] {text}"


def test_progress_bars_keep_their_last_state(show: Callable[[str], str]) -> None:
    source = (
        "import sys\nfor i in range(1, 4):\n    print(f'\\r{i}/3', end='', file=sys.stderr, flush=True)\n"
        "print(file=sys.stderr)"
    )
    assert show(f"%%mesh\n{source}") == "[0-3] 3/3"


def test_colours_are_html_and_not_in_the_text(notebook: Notebook) -> None:
    outputs = notebook.run("%%mesh\nprint('\\x1b[31mred\\x1b[0m <b>')")
    bundle = outputs[-1].data
    assert bundle["text/plain"] == "[0-3] red <b>"
    assert 'class="ansi-red-fg">red</span> &lt;b&gt;' in bundle["text/html"]
    assert "<script" not in bundle["text/html"]


def test_late_output_lands_in_its_own_cell(tmp_path: Path) -> None:
    kernel = RawKernel()
    kernel.run("%load_ext monarch_nb\n%mesh start late --procs 2")
    gate, other = FileLatch(tmp_path / "gate"), FileLatch(tmp_path / "other")
    late = "\n    ".join(
        ["import threading\ndef late():", *gate.source.splitlines(), "print('late', flush=True)"]
    )
    first = kernel.run(f"%%mesh\nprint('early')\n{late}\nthreading.Thread(target=late).start()")
    gate_of_child = tmp_path / "gate of child"
    child = f"until [ -e '{gate_of_child}' ]; do sleep 0.01; done; echo from a child"
    second = kernel.run(
        f"%%mesh\nimport subprocess\nprint('next')\nsubprocess.Popen(['sh', '-c', {child!r}])\nNone"
    )
    beside = kernel.run("'beside'")
    gate.open()
    kernel.wait_for(first, "[0-1] early\n[0-1] late")
    gate_of_child.touch()
    kernel.wait_for(
        second, "[0-1] next\n[0-1] from a child"
    )  # of a child only that is known which cell its rank has begun last
    kernel.run(
        "from monarch_nb.actor import Actor, endpoint\n"
        "class Late(Actor):\n"
        "    @endpoint\n"
        "    def begin(self, source):\n"
        "        exec(source, {})\n        print('called')\n        return 1\n"
        "late = mesh.spawn('late', Late)"
    )
    call = kernel.run(f"future = late.begin.call({other.source!r})")
    third = kernel.run("'meanwhile'")
    other.open()
    kernel.wait_for(call, "[0-1] called")
    kernel.run("%mesh stop")
    assert kernel.text(second).count("from a child") == 1
    assert "child" not in kernel.text(first) + kernel.text(beside)
    assert "called" not in kernel.text(third)
    kernel.close()


def test_several_meshes_at_once() -> None:
    kernel = RawKernel()
    kernel.run("%load_ext monarch_nb\n%mesh start left --procs 1\n%mesh start right --procs 2")
    assert kernel.text(kernel.run("%%mesh --name left\nworld_size")).strip() == "1"
    assert kernel.text(kernel.run("%%mesh\nworld_size")).strip() == "[0-1] 2"
    kernel.run(
        "from monarch_nb.actor import Actor, endpoint\n"
        "class Speaker(Actor):\n    @endpoint\n    def say(self, text): print(text)\n"
        "speakers = [m.spawn('speaker', Speaker) for m in (left, right)]"
    )
    cell = kernel.run(
        "for s, text in zip(speakers, ('from the left', 'from the right')): s.say.call(text).get()"
    )
    assert "from the left" in kernel.text(cell)
    assert "[0-1] from the right" in kernel.text(cell)
    kernel.run("%mesh use left")
    assert kernel.text(kernel.run("%%mesh\nworld_size")).strip() == "1"
    kernel.run("%mesh stop left\n%mesh stop right")
    kernel.close()


def test_a_hundred_thousand_lines(notebook: Notebook, show: Callable[[str], str]) -> None:
    outputs = notebook.run("%%mesh\nfor i in range(25_000): print('line', i, rank)\nprint('the end')")
    text = outputs[-1].data["text/plain"]
    assert len(outputs) == 1
    assert "lines not shown; all of them: %mesh logs" in text
    assert "] the end" in text
    assert len(outputs[-1].data["text/html"]) < 1 << 20
    for rank in (0, 3):
        grep = show(f"%mesh logs --ranks {rank} --bytes 100000000 --grep 'line \\d+ {rank}$'")
        assert [int(line.split()[2]) for line in grep.splitlines()] == list(range(25_000))


def test_a_million_lines_are_shown_in_part_and_counted(
    notebook: Notebook, show: Callable[[str], str]
) -> None:
    text = show("%%mesh --ranks 0\nfor i in range(1_000_000): print('line', i)\n'the value'").splitlines()
    assert text[0] == "[0] line 0" and text[-2:] == ["[0] line 999999", "[0] 'the value'"]
    notes = [line for line in text if "not shown; all of them: %mesh logs" in line]
    counted = sum(int(note.split()[1].replace(",", "")) for note in notes)
    assert counted + len(text) - len(notes) - 1 in (1_000_000, 1_000_001), "a line may be shown in part"
    # The journal has what the display was spared, and the next cell waits for nothing.
    assert "line 500000\n" in show("%mesh logs --grep 'line 500000'") + "\n"
    assert show("%%mesh --ranks 0\n1") == "[0] 1"


def test_many_lines_and_what_others_print_in_between(show: Callable[[str], str]) -> None:
    """They go by different ways; both must have been tried."""
    show(f"%%mesh\nimport sys\nwhile not {IS_BURST}: print('until the host process reads memory')")
    source = """
import os, subprocess, sys
how = []
for block in range(3):
    for i in range(300):
        print(block, i)
    how.append(IS_BURST)
    subprocess.run(["echo", f"child {block}"])
    print("to stderr", file=sys.stderr)
any(how)
"""
    first = [
        line for b in range(3) for line in (*(f"{b} {i}" for i in range(300)), f"child {b}", "to stderr")
    ]
    *lines, value = show("%%mesh\n" + source.replace("IS_BURST", IS_BURST)).splitlines()
    assert lines == [f"[0-3] {line}" for line in first]
    assert value == "[0-3] True"


def test_many_lines_of_a_rank_that_is_killed_are_kept(notebook: Notebook, show: Callable[[str], str]) -> None:
    source = "for i in range(5000): print('last words', i)\nif rank == 2: os.kill(os.getpid(), 9)"
    assert "rank 2" in show(f"%%mesh\nimport os\n{source}")
    notebook.run("%mesh heal")
    text = show("%mesh logs --ranks 2 --bytes 100000000 --grep 'last words \\d+'")
    assert [int(line.split()[3]) for line in text.splitlines()] == list(range(5000))


@pytest.mark.parametrize(
    ("group", "lines"),
    [
        ("fold", ["[0-1] a", "[0-1] b"]),
        ("rank", ["[0] a", "[0] b", "[1] a", "[1] b"]),
        ("none", ["a", "a", "b", "b"]),
    ],
)
def test_grouping(show: Callable[[str], str], group: str, lines: list[str]) -> None:
    text = show(f"%%mesh --ranks 0-1 --group {group}\nprint('a')\nprint('b')").splitlines()
    assert (sorted(text) if group == "none" else text) == lines


def test_order_of_arrival(show: Callable[[str], str]) -> None:
    text = show("%%mesh --ranks 0-1 --group order\nprint('a')\nprint('b')").splitlines()
    for rank in "01":
        assert [line for line in text if line.startswith(f"[{rank}]")] == [f"[{rank}] a", f"[{rank}] b"]


def test_plots_and_tables_have_tabs_by_rank_set(notebook: Notebook) -> None:
    pytest.importorskip("pandas")
    outputs = notebook.run("%%mesh\nimport pandas\npandas.DataFrame({'x': [rank // 2]})")
    html = outputs[-1].data["text/html"]
    assert html.count('type="radio"') == 2
    assert "ranks 0-1" in html
    assert "ranks 2-3" in html


def test_background_cells(show: Callable[[str], str], tmp_path: Path) -> None:
    gate = FileLatch(tmp_path / "gate")
    text = show(f"%%mesh --async\n{gate.source}\nprint('slept')\nrank")
    assert "runs in the background; %mesh result" in text or text == ""
    assert show("1 + 1") == "2"
    gate.open()
    assert show("%mesh result") == "[0-3] slept\n[0] 0\n[1] 1\n[2] 2\n[3] 3"
    show("%%mesh --async\nraise KeyError(rank)")
    text = show("%mesh result")
    assert "ERROR the cell failed on 4 of 4 ranks" in text
    assert "takes --async or --output, not both" in show("%%mesh --async --output x\n1")


def test_first_failure_is_marked_and_kept(show: Callable[[str], str]) -> None:
    text = show(
        "%%mesh\nimport threading\nif rank == 2: raise ValueError('cause')\ntry: threading.Event().wait()\n"
        # it comes when the controller has heard of the first failure
        "except KeyboardInterrupt: raise RuntimeError('effect') from None"
    )
    assert text.index("rank 2 (first): ValueError: cause") < text.index("ranks 0-1,3: RuntimeError: effect")
    assert re.search(r"Cell In\[\d+\], line 2", text)
    assert "monarch_nb" not in text
    assert show("[f.type for f in mesh.last_error.failures], mesh.last_error.failures[0].first") == (
        "(['ValueError', 'RuntimeError'], True)"
    )


def test_errors_point_into_functions_of_other_cells(show: Callable[[str], str]) -> None:
    show("%%mesh\ndef broken(x):\n    return x / 0")
    text = show("%%mesh --ranks 1\nbroken(1)")
    assert "----> 2     return x / 0" in text
    assert "broken(1)" in text


def test_auto_mode(show: Callable[[str], str]) -> None:
    assert "plain cells run on mesh 'loud' from now on" in show("%mesh auto on")
    assert show("rank") == "[0] 0\n[1] 1\n[2] 2\n[3] 3"
    assert show("%%local\n'here'") == "'here'"
    assert "this cell is not Python" in show("for")
    assert "idle      ranks 0-3" in show("%mesh status")
    assert show("%mesh auto off") == "plain cells run here"
    assert "NameError" in show("rank")
