"""`monarch-nb` as a terminal's own command: its words, its colours, its keys, its list."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import PATIENCE_S

from monarch_nb._cli import COMMANDS
from monarch_nb._terminal.words import in_terminal

PROGRAM = [sys.executable, "-m", "monarch_nb"]


def ran(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="module")
def mesh() -> Iterator[str]:
    assert "is ready" in ran("start", "term", "--procs", "2").stdout
    yield "term"
    assert "has ended" in ran("stop", "term").stdout


def test_starting_what_runs_says_how_to_get_at_it(mesh: str) -> None:
    refused = ran("start", mesh, "--procs", "3")
    assert refused.returncode
    assert f"mesh '{mesh}' runs already. Attach to it: %mesh attach {mesh} (in a notebook)" in refused.stderr


class Terminal:
    """A program on a terminal of its own: what it writes, and keys."""

    def __init__(self, *words: str, **environment: str) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.process = subprocess.Popen(
            [*PROGRAM, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm", **environment},
        )
        os.close(slave)
        self._master = master
        self.text = ""

    def read_until(self, text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in self.text:
            ready = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]
            assert ready, f"{text!r} isn't in {self.text!r}"
            self.text += os.read(self._master, 1 << 16).decode(errors="replace")

    def read_to_end(self) -> int:
        while True:
            try:
                more = os.read(self._master, 1 << 16)
            except OSError:  # nobody has the other side open any more
                more = b""
            if not more:
                return self.process.wait(PATIENCE_S)
            self.text += more.decode(errors="replace")

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for each in opened:
        each.close()


def test_q_ends_top_and_the_terminal_is_as_before(mesh: str, terminals: list[Terminal]) -> None:
    terminals.append(terminal := Terminal("top", mesh))
    before = termios.tcgetattr(terminal._master)
    terminal.read_until("q: end")
    assert termios.tcgetattr(terminal._master)[3] != before[3]  # keys come one by one
    terminal.press("x")
    terminal.press("q")
    assert terminal.read_to_end() == 0
    assert termios.tcgetattr(terminal._master)[3] == before[3]
    assert "Traceback" not in terminal.text


def test_the_list_says_size_state_age_and_owner(mesh: str) -> None:
    lines = ran("list").stdout.splitlines()
    assert re.fullmatch(r"  name +ranks +state +up +started by +in use by", lines[0])
    assert re.fullmatch(
        r"  term +2 \(procs=2\) +ok +[\d.]+ (s|min) +\S+ \(pid \d+\) +no clients +controller pid \d+",
        lines[1],
    )
    assert lines[0].index("state") == lines[1].index("ok")


def test_a_mesh_that_does_not_answer_is_listed_and_holds_up_nobody(mesh: str) -> None:
    import signal

    from monarch_nb._client.launch import find_connection

    assert "is ready" in ran("start", "frozen", "--procs", "1").stdout
    controller = find_connection("frozen").pid
    os.kill(controller, signal.SIGSTOP)
    try:
        listed = ran("list").stdout
    finally:
        os.kill(controller, signal.SIGCONT)
    assert re.search(r"frozen +\? +no answer within 3 s", listed)
    assert re.search(r"term +2 \(procs=2\) +ok", listed)
    assert "has ended" in ran("stop", "frozen").stdout


def test_messages_are_in_the_terminals_words(mesh: str) -> None:
    lost = ran("exec", mesh, "import os\nif rank: os._exit(3)")
    assert lost.returncode == 1
    assert f"monarch-nb heal {mesh} (or mesh.heal()) puts it back" in lost.stderr
    assert "lost 1" in ran("list").stdout
    assert "rank 1 started anew" in ran("heal", mesh).stdout
    nobody = ran("status", "nobody")
    assert (nobody.returncode, nobody.stderr) == (
        1,
        "monarch-nb: mesh 'nobody' is not running. Start it: monarch-nb start nobody; running: term\n",
    )
    running = subprocess.Popen(
        [*PROGRAM, "exec", mesh, "import time\nprint('runs', flush=True)\ntime.sleep(600)", "--ranks", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "[0] runs\n"
    assert f"1 cell running; see monarch-nb history {mesh}" in ran("status", mesh).stdout
    ran("interrupt", mesh)
    assert running.wait(PATIENCE_S) == 130
    running.stdout.close()


def test_every_verb_that_messages_name_is_said_in_the_terminals_words() -> None:
    from monarch_nb._magics.verbs import VERBS

    package = Path(__file__).parents[2] / "monarch_nb"
    of_all = {"list", "clusters", "queue"}
    found = {
        verb
        for file in package.rglob("*.py")
        for verb in re.findall(r"%mesh ([a-z][a-z-]+)", file.read_text())
    } & set(VERBS)
    assert {"heal", "start", "attach", "stacks"} <= found
    for verb in found:
        text = in_terminal(f"next: %mesh {verb} --ranks 3 does it", COMMANDS, "dev")
        assert (
            text.startswith(f"next: monarch-nb {verb}{'' if verb in of_all else ' dev'} --ranks 3")
            if verb in COMMANDS
            and verb != "attach"  # a terminal attaches by an invitation, never by a mesh's name
            else "(in a notebook)" in text
        ), text


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("Start it: %mesh start x; running: y", "Start it: monarch-nb start x; running: y"),
        ("see %mesh history", "see monarch-nb history dev"),
        ("%mesh diff --env says where", "monarch-nb diff-env dev says where"),
        ("name one of %mesh list", "name one of monarch-nb list"),
        ("Come back: %mesh attach x", "Come back: %mesh attach x (in a notebook)"),
        ("set TIME: %mesh set why-after", "set TIME: %mesh set why-after (in a notebook)"),
        (
            "30 days: %mesh set journal DAYS|off; not of",
            "30 days: %mesh set journal DAYS|off (in a notebook); not of",
        ),
        (
            "it is off: %mesh set journal on turns it on",
            "it is off: %mesh set journal on (in a notebook) turns it on",
        ),
        ("`%mesh auto off` ends it", "`%mesh auto off (in a notebook)` ends it"),
        ("%mesh result waits for it", "%mesh result (in a notebook) waits for it"),
        ("100 %mesh", "100 %mesh"),
    ],
)
def test_words(message: str, wanted: str) -> None:
    assert in_terminal(message, COMMANDS, "dev") == wanted


def test_no_colours_into_pipes(mesh: str) -> None:
    failed = ran("exec", mesh, "print('\\x1b[31mred\\x1b[0m')\n1 / 0", "--ranks", "0")
    assert "[0] red\n" in failed.stdout
    assert "ZeroDivisionError" in failed.stderr
    assert "\x1b" not in failed.stdout + failed.stderr
    assert "\x1b" not in ran("logs", mesh).stdout


def test_no_color_is_heeded_on_a_terminal(mesh: str, terminals: list[Terminal]) -> None:
    source = "print('\\x1b[31mred\\x1b[0m')\n1 / 0"
    terminals.append(coloured := Terminal("exec", mesh, source, "--ranks", "0", NO_COLOR=""))
    assert coloured.read_to_end() == 1
    assert "\x1b[31mred" in coloured.text
    terminals.append(plain := Terminal("exec", mesh, source, "--ranks", "0", NO_COLOR="1"))
    assert plain.read_to_end() == 1
    assert "[0] red" in plain.text
    assert not re.search(r"\x1b\[[0-9;]*m", plain.text)


def test_who_stops_reading_is_no_error(mesh: str) -> None:
    ran("exec", mesh, "for i in range(20000): print('line', i, rank)")
    piped = subprocess.run(
        f"{' '.join(PROGRAM)} logs {mesh} | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (len(piped.stdout.splitlines()), piped.stderr) == (1, "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["statos"],
            (
                "monarch-nb has no command 'statos'. Did you mean monarch-nb status? monarch-nb --help "
                "lists all commands"
            ),
        ),
        (["fly"], "monarch-nb has no command 'fly'. monarch-nb --help lists all commands"),
        (["logs", "--folow"], "Did you mean --follow? Usage: monarch-nb logs "),
        (["sync", "model.py"], "not 'model.py'; paths stand behind the mesh's name"),
        (["sync", "--env", "--from", "there"], "argument --from: "),
    ],
)
def test_typos_are_asked_back(words: list[str], says: str) -> None:
    found = ran(*words)
    assert (found.returncode, found.stdout) == (2, "")
    assert says in found.stderr


def test_machines_without_a_mesh_have_no_index_to_ask() -> None:
    found = ran("sync", "--env", "--to", "box", "--from", "index")
    assert found.returncode == 1
    assert "--to 'box' is sent everything, and --from index is for hosts of a mesh" in found.stderr


def test_what_a_notebook_can_do_the_terminal_can(mesh: str) -> None:
    assert f"rank 1 of mesh '{mesh}' was restarted" in ran("restart", mesh, "--ranks", "1").stdout
    assert "ends after 3 h" in ran("lease", mesh, "--set", "3h").stdout
    assert "ends after 3 h" in ran("lease", mesh).stdout
    assert "--force does it" in ran("resize", mesh, "procs=1").stderr


def test_history_says_in_a_terminals_words_what_is_kept(mesh: str) -> None:
    assert ran("exec", mesh, "print('%mesh heal')").returncode == 0
    shown = ran("history", mesh).stdout
    assert "kept on disk for 30 days: %mesh set journal DAYS|off (in a notebook)" in shown
    assert "print('%mesh heal')" in shown


def test_displays_are_text_in_their_places(mesh: str) -> None:
    source = (
        "from IPython.display import *\nprint('one')\ndisplay(Markdown('two'))\nprint('three', end='')\n"
        "display(f'four {rank}')\nprint('five')\n'six'"
    )
    assert ran("exec", mesh, source).stdout.splitlines() == [
        *(
            "[0-1] one",
            "[0-1] two",
            "[0-1] three",
            "[0] 'four 0'",
            "[1] 'four 1'",
            "[0-1] five",
            "[0-1] 'six'",
        )
    ]
