"""Whatever is typed, there's one clear error: it names the input, says what was expected and what to type;
the mesh and the notebook's state survive.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from absurd import lines, typed
from kernels import ANSI, RawKernel

from monarch_nb._cli import COMMANDS, _parser
from monarch_nb._magics.verb_help import cell_parser, verb_parsers

MAX_ERROR = 2500
OUR_FRAMES = re.compile(r"/monarch_nb/[a-z_]+(/[a-z_]+)*\.py")


@pytest.fixture(scope="module")
def kernel() -> Iterator[RawKernel]:
    opened = RawKernel()
    opened.run("%load_ext monarch_nb")
    opened.run("%mesh start absurd --procs 2")
    yield opened
    opened.run("%mesh stop absurd")
    opened.close()


def problem(line: str, text: str, *, failed: bool) -> str:
    """Return what is wrong with an answer, if anything."""
    if OUR_FRAMES.search(text):
        return "shows frames of ours"
    if "fault of monarch_nb" in text:
        return "is an error that nobody has thought of"
    if not failed:
        return ""
    if len(text) > MAX_ERROR:
        return "is too long"
    if not any((word.strip("'")[:20] or "''") in text for word in line.split()[1:]):
        return "doesn't name the input"
    if not re.search(
        r"Usage: |%mesh |%%mesh |monarch-nb |expected|Examples: |takes|is not defined|no "
        r"variable|SyntaxError",
        text,
    ):
        return "doesn't say what to type"
    return ""


def answers(kernel: RawKernel, cells: list[str]) -> list[str]:
    """Run cells one after the other, sent all at once; return what each shows."""
    sent = [kernel.client.execute(cell, allow_stdin=False, stop_on_error=False) for cell in cells]
    kernel.finish(sent[-1])
    # What is written together may come in pieces.
    return [re.sub(r"\n+", "\n", ANSI.sub("", kernel.text(each))).strip() for each in sent]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_every_verb_survives_absurd_arguments(kernel: RawKernel, tmp_path: Path) -> None:
    kernel.run(
        f"import os; os.makedirs({str(tmp_path / 'a' / 'b')!r}); os.chdir({str(tmp_path / 'a' / 'b')!r})"
    )
    states = [
        "%mesh use",
        "%mesh set",
        "%mesh lease",
        "sorted(k for k in globals() if not k.startswith('_'))",
    ]
    answers(kernel, ["x = 1", "%mesh push x"])
    before = answers(kernel, states)
    cells = [
        f"%mesh {verb} {typed(words)}"
        for verb, parser in verb_parsers().items()
        for words in lines(parser, "absurd")
    ]
    assert {cell.split()[1] for cell in cells} == {
        verb for verb, p in verb_parsers().items() if any(a.nargs != 0 for a in p._actions)
    }
    cells += [f"%%mesh {typed(words)}\n1" for words in lines(cell_parser(), "absurd")]
    cells += ["%mesh 🐙", f"%mesh {'a' * 300}"]
    shown = answers(kernel, cells)
    wrong = {
        cell: f"{found}: {text[:1500]}"
        for cell, text in zip(cells, shown, strict=True)
        if (found := problem(cell, text, failed=bool(re.match(r"[A-Za-z]*(Error|NotFound|Timeout):", text))))
    }
    assert not wrong, (
        "\n\n".join(f"{cell}\n{why}" for cell, why in list(wrong.items())[:20])
        + f"\n{len(wrong)} of {len(cells)}"
    )
    assert sum("Error" in text for text in shown) > len(shown) / 2
    assert all(
        "Close each quotation mark" in text
        for text in answers(kernel, ["%mesh '", '%mesh logs "', "%%mesh '\n1"])
    )
    assert answers(kernel, states) == before
    assert answers(kernel, ["%%mesh\nrank"]) == ["[0] 0\n[1] 1"]


_DRIVER = """
import json, os, sys, tempfile
import monarch_nb._display.top, monarch_nb._widgets.top, monarch_nb.mesh.listing
from monarch_nb._cli import main
found = []
for words in json.load(sys.stdin):
    file = tempfile.TemporaryFile()
    pid = os.fork()
    if not pid:
        os.dup2(file.fileno(), 1); os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, 'w'), os.fdopen(2, 'w')
        sys.exit(main(words))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    file.seek(0)
    found.append([status, file.read().decode()])
json.dump(found, sys.stdout)
"""


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_every_command_survives_absurd_arguments(kernel: RawKernel, tmp_path: Path) -> None:
    parsers = next(a for a in _parser()._actions if a.dest == "command").choices
    assert parsers is not None and list(parsers) == list(COMMANDS)
    commands = [
        [name, *words]
        for name, parser in parsers.items()
        for words in lines(parser, "absurd", ("", "-1", "🐙", "9" * 20, "1e999"), num=1)
    ]
    (tmp_path / "a" / "b").mkdir(parents=True)
    ran = subprocess.run(
        [sys.executable, "-c", _DRIVER],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        cwd=tmp_path / "a" / "b",
    )
    shown = json.loads(ran.stdout)
    wrong = {}
    for words, (status, text) in zip(commands, shown, strict=True):
        found = problem(
            typed(["monarch-nb", *words]), text, failed=status not in (0, 1) or text.startswith("monarch-nb")
        )
        if found or status not in (0, 1, 2) or "%mesh" in text:
            wrong[typed(words)] = f"{found or status}: {text[:1500]}"
    assert not wrong, (
        "\n\n".join(f"{cell}\n{why}" for cell, why in list(wrong.items())[:20])
        + f"\n{len(wrong)} of {len(commands)}"
    )
    assert answers(kernel, ["%%mesh\nrank"]) == ["[0] 0\n[1] 1"]


def ran(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "monarch_nb", *words],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("words", [["list"], ["start", "homeless", "--procs", "1"], ["history", "homeless"]])
def test_a_home_that_is_no_directory(words: list[str], tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.touch()
    kept = {k: v for k, v in os.environ.items() if not k.startswith("JUPYTER_")}
    found = subprocess.run(
        [sys.executable, "-m", "monarch_nb", *words],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**kept, "HOME": str(home)},
    )
    assert found.returncode == 1
    assert re.fullmatch(
        rf"monarch-nb {words[0]}: .*{home}.* HOME is '{home}': have it name a directory that you can write "
        rf"to\n",
        found.stderr,
    )


def test_a_journal_that_can_not_be_made(tmp_path: Path) -> None:
    found = ran("start", "unkept", "--procs", "1", JUPYTER_DATA_DIR="/proc/no")
    assert found.returncode == 1
    assert "'/proc/no'" in found.stderr and "JUPYTER_DATA_DIR is '/proc/no': have it name" in found.stderr
    assert "Traceback" not in found.stderr
    assert "unkept" not in ran("list").stdout


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    source = (
        "import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); from monarch_nb._cli "
        "import main; sys.exit(main(sys.argv[1:]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", source, "start", "lostway", "--procs", "1"],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        cwd=tmp_path,
    )
    assert (found.returncode, found.stderr) == (
        1,
        (
            "monarch-nb start: the working directory has been removed: change to one that exists, then "
            "type it again\n"
        ),
    )


def test_sockets_whose_directory_lies_deep(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    found = ran("start", "deep", "--procs", "1", TMPDIR=str(deep), XDG_RUNTIME_DIR="")
    assert "mesh 'deep' (procs=1: rank 0) is ready" in found.stdout
    assert ran("exec", "deep", "rank + 41").stdout == "41\n"
    assert "has ended" in ran("stop", "deep").stdout


def test_an_extension_loads_without_a_home(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    source = (
        "from IPython.core.interactiveshell import InteractiveShell as S\ns = S.instance()\n"
        "s.run_cell('%load_ext monarch_nb')\ns.run_cell('%mesh help')"
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith("JUPYTER_")}
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", source],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
        env={**kept, "HOME": str(tmp_path / "home"), "IPYTHONDIR": str(tmp_path / "ipython")},
    )
    assert "HOME is" in found.stderr and "Traceback" not in found.stderr + found.stdout
    assert "%mesh help VERB explains one" in found.stdout
