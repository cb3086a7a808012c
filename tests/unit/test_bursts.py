"""A program that prints many lines, and its host process' end: all of it comes, in order, whatever happens in
between.
"""

from __future__ import annotations

import array
import fcntl
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from monarch_nb._host.agent.burst_reader import Bursts
from monarch_nb._host.agent.output import PIPE_BYTES, OutputReader
from monarch_nb._host.loop import Loop
from monarch_nb._wire.marks import SETTLED, TEXT, Piece

PROGRAM = """
import contextvars, os, signal, subprocess, sys, threading
from monarch_nb._transport.context import CallContext, call_context
from monarch_nb._rank import streams
from monarch_nb._rank.bursts import MANY_LINES
from monarch_nb._wire.text_memory import SIZE_BYTES

pipe = streams.install("TOKEN")
pipe.burst.main_is_busy = lambda: False
looked_up_before = sys.stdout.write

def in_name_of(origin, function):
    def run():
        call_context.set(CallContext(origin))
        function()
    contextvars.copy_context().run(run)

def is_on():
    return pipe.burst.is_on

def burst(name="before"):
    "Print until lines go through memory; the host process has to open that."
    n = 0
    while not is_on():
        assert n < 1000000
        print(name, n)
        n += 1

def may_take(size):
    "Limit how much memory this process may reserve from now on."
    import resource
    pages = int(open("/proc/self/statm").read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, -1))

{body}
sys.stdout.flush()
pipe.mark_answer(0)
"""


IS_MMAP = "assert type(pipe.burst._memory._file).__name__ == 'mmap'"


def num_bytes_in(pipe: int) -> int:
    """Return how much a pipe holds."""
    number = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, number)
    return number[0]


class Host:
    """The host process' end of a program's output."""

    def __init__(self, body: str) -> None:
        self.pieces: list[Piece] = []
        self.loop = Loop()
        self.bursts = Bursts(self.loop)
        self.reader = OutputReader(self.loop, "TOKEN", "stdout", self.pieces.append, self.bursts)
        self.reader.on_close = lambda _reader: self.loop.stop()
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(body=body)],
            stdin=subprocess.PIPE,
            stdout=self.reader.write_end,
            text=True,
        )
        os.close(self.reader.write_end)

    def serve(self) -> str:
        """Read until the output ends; return all text."""
        self.loop.run()
        return self.text

    @property
    def text(self) -> str:
        return b"".join(p.data for p in self.pieces if p.kind == TEXT).decode()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.reader.close()


@pytest.fixture
def run() -> Iterator[type[Host]]:
    """Makes hosts, and closes them."""
    made: list[Host] = []

    class Kept(Host):
        def __init__(self, body: str) -> None:
            super().__init__(body)
            made.append(self)

    yield Kept
    for host in made:
        host.close()


def after(text: str, name: str = "before") -> list[str]:
    """Return the lines that came when lines went through memory; those before are as they should be."""
    lines = text.splitlines()
    first = [line for line in lines if line.startswith(f"{name} ")]
    assert first == [f"{name} {n}" for n in range(len(first))]
    return lines[len(first) :]


def test_all_lines_come_in_order(run: type[Host]) -> None:
    begun, more = (
        "start = pipe.burst._memory.tell()",
        f"assert pipe.burst._memory.tell() > start\n{IS_MMAP.replace('mmap', 'BytesIO')}",
    )
    host = run(f"burst()\n{begun}\nfor i in range(100_000): print('line', i)\n{more}")
    assert after(host.serve()) == [f"line {i}" for i in range(100_000)]
    assert host.process.wait() == 0
    assert host.pieces[-1].kind == SETTLED  # behind all lines, though it came by the pipe


def test_a_crash_finds_each_line_written(run: type[Host]) -> None:
    host = run("burst()\nfor i in range(1000): print('line', i)\nos.kill(os.getpid(), 9)")
    assert after(host.serve()) == [f"line {i}" for i in range(1000)]
    assert host.process.wait() == -signal.SIGKILL


def test_lines_wait_for_a_host_process_that_is_busy(run: type[Host]) -> None:
    """More than the memory holds: the rest takes the pipe, and waits there."""
    host = run("burst()\nsys.stdin.readline()\nfor i in range(60_000): print('line', i, 'x' * 1000)")
    while host.reader._burst is None:  # by what `burst` prints
        host.reader.drain()
    assert host.process.stdin is not None
    host.process.stdin.write("go\n")
    host.process.stdin.flush()
    wait_until(lambda: num_bytes_in(host.reader.fd) > PIPE_BYTES // 2, "lines that take the pipe again")
    assert after(host.serve()) == [f"line {i} {'x' * 1000}" for i in range(60_000)]


@pytest.mark.parametrize(
    "how",
    [
        "subprocess.run(['echo', 'other'])",
        "os.system('echo other')",
        "os.write(1, b'other\\n')",
        "os.waitpid(os.posix_spawnp('echo', ['echo', 'other'], os.environ), 0)",
        "print('other', file=sys.stderr)",
        "sys.stderr.write('other\\n')",
        "thread = threading.Thread(target=print, args=('other',)); thread.start(); thread.join()",
        "if not (child := os.fork()): print('other', flush=True); os._exit(0)\n    os.waitpid(child, 0)",
        "in_name_of(7, lambda: print('other'))",
        "in_name_of(7, lambda: print('other', file=sys.stderr))",
        "pipe.begin_origin(3); print('other')",
        "sys.stdout.writelines(['oth', 'er', '\\n'])",
        "sys.stdout.write('oth'); sys.stdout.flush(); print('er')",
        "looked_up_before('other\\n')",
    ],
)
def test_what_comes_in_between_stays_in_between(run: type[Host], how: str) -> None:
    body = f"""
for i in range(3):
    burst(f"before-{{i}}")
    print("one"), print("two"), print("three")
    {how}
print("end")
"""
    host = run(body)
    rest = host.serve()
    for i in range(3):
        is_last, lines = i == 2, after(rest, f"before-{i}")
        assert lines[:4] == ["one", "two", "three", "other"]
        assert not is_last or lines[4:] == ["end"]
        rest = "".join(f"{line}\n" for line in lines[4:])
    assert host.process.wait() == 0


@pytest.mark.parametrize("back", ["del sys.stdout.write", "sys.stdout.write = own"])
def test_users_may_put_their_own_function_in_the_place_of_write(run: type[Host], back: str) -> None:
    """As programs do that keep a copy of all that is printed: they see each line, until they take it back."""
    host = run(
        """
seen, own = [], sys.stdout.write
def write(text):
    seen.append(text)
    return own(text)
sys.stdout.write = write
for i in range(1000): print("kept", i)
assert "".join(seen) == "".join(f"kept {i}\\n" for i in range(1000)), seen[:9]
assert sys.stdout.write is write and not is_on()
{back}
burst()
print("end")
""".replace("{back}", back)
    )
    lines = host.serve().splitlines()
    assert host.process.wait() == 0
    assert lines[:1000] == [f"kept {i}" for i in range(1000)]
    assert after("\n".join(lines[1000:])) == ["end"]


def test_what_is_put_back_while_many_lines_come_is_no_way_into_memory(run: type[Host]) -> None:
    """As IPython does around each cell. Lines would be seen late, and not in order with others."""
    host = run("""
burst()
quick = sys.stdout.write
sys.stdout.write = lambda text: quick(text)
sys.stdout.write = quick
print("one")
os.system("echo two")
assert not is_on() and sys.stdout.write is not quick and "write" not in vars(sys.stdout)
print("three")
""")
    assert after(host.serve()) == ["one", "two", "three"]
    assert host.process.wait() == 0


def test_what_was_printed_before_a_question_is_there_when_it_is_asked(run: type[Host]) -> None:
    """The host process looks at once when it passes something on."""
    host = run("burst()\nprint('last')\nsys.stderr.write('')\nsys.stdin.readline()")
    while "last" not in host.text:
        host.reader.drain()
        host.bursts.read()
    assert host.process.stdin is not None
    host.process.stdin.write("go\n")
    host.process.stdin.flush()
    assert after(host.serve()) == ["last"]


def test_what_is_redirected_goes_there(run: type[Host], tmp_path: Path) -> None:
    file = tmp_path / "file"
    body = f"""
burst()
kept = os.dup(1)
os.dup2(os.open({str(file)!r}, os.O_CREAT | os.O_WRONLY), 1)
for i in range(1000): print("to the file")
os.dup2(kept, 1)
print("back")
"""
    host = run(body)
    assert after(host.serve()) == ["back"]
    assert file.read_text() == "to the file\n" * 1000


def test_lines_are_seen_when_the_descriptor_is_closed(run: type[Host]) -> None:
    host = run("burst()\nos.close(1)\nfor i in range(1000): print('line', i)\nassert not is_on()")
    told = "descriptor 1 was closed: it leads to the cell's output again"
    assert after(host.serve()) == [*(f"line {i}" for i in range(1000)), told]
    assert host.process.wait() == 0


def test_threads_keep_their_lines(run: type[Host]) -> None:
    body = """
def work(name):
    for i in range(3000): print(f"{name}", "of", "several", "words")
burst()
threads = [threading.Thread(target=work, args=(n,)) for n in "abcd"]
for t in threads: t.start()
for i in range(3000): print("main", "of", "several", "words")
for t in threads: t.join()
"""
    found = after(run(body).serve())
    assert sorted(found) == sorted(
        f"{n} of several words" for n in ("a", "b", "c", "d", "main") for _ in range(3000)
    )


def test_lines_of_cells_keep_their_cell(run: type[Host]) -> None:
    body = """
def call(number):
    burst(f"before-{number}")
    print(number)

for number in range(1, 6):
    in_name_of(number, lambda: call(number))
    assert is_on()
    pipe.mark_answer(number)
"""
    host = run(body)
    host.serve()
    found = [(p.origin, line) for p in host.pieces if p.kind == TEXT for line in p.data.decode().splitlines()]
    assert [each for each in found if not each[1].startswith("before")] == [(n, str(n)) for n in range(1, 6)]
    assert all(line.startswith(("before", str(origin))) for origin, line in found)


def test_values_that_do_something_when_they_are_printed(run: type[Host]) -> None:
    """`print` looks up `write`, makes text of the value, which may end the burst, and calls that then."""
    body = """
class Value:
    def __str__(self):
        os.system("echo from a child")
        return "value"
for i in range(3):
    burst(f"before-{i}")
    print("first"), print(Value()), print("last")
    pipe.mark_answer(0)
"""
    rest = run(body).serve()
    for i in range(3):
        lines = after(rest, f"before-{i}")
        assert lines[:4] == ["first", "from a child", "value", "last"]
        rest = "".join(f"{line}\n" for line in lines[4:])
    assert rest == ""


def test_lines_that_end_in_nothing_yet_are_seen_when_they_are_flushed(run: type[Host]) -> None:
    host = run("burst()\nprint('one'), print('half', end='', flush=True)\nsys.stdin.readline()")
    while "half" not in host.text:
        host.reader.drain()
    assert after(host.text) == ["one", "half"]
    assert host.process.stdin is not None
    host.process.stdin.write("go\n")
    host.process.stdin.flush()
    host.serve()


def test_text_with_nuls(run: type[Host]) -> None:
    host = run(r"burst()" + "\nprint(chr(0)), print('a' + chr(0) + 'b'), print('end')")
    assert after(host.serve()) == ["\0", "a\0b", "end"]


def test_signal_handlers_may_print(run: type[Host]) -> None:
    """They come between any two steps of a line."""
    body = """
burst()
num = 0
def on_alarm(*_):
    global num
    num += 1
    print("!", end="")
signal.signal(signal.SIGALRM, on_alarm)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
i = 0
while num < 20:
    print("line", i)
    i += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print(num)
"""
    lines = after(run(body).serve())
    *printed, num = (line.replace("!", "") for line in lines)
    assert sum(line.count("!") for line in lines) == int(num)
    assert printed == [f"line {i}" for i in range(len(printed))]


def test_an_interrupt_costs_a_line_at_most(run: type[Host]) -> None:
    body = """
burst()
def on_alarm(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, on_alarm)
i = 0
for _ in range(200):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        while True:
            i += 1
            print("line", i)
    except KeyboardInterrupt:
        pass
    print(" next", flush=True)
print("end")
"""
    host = run(body)
    lines = after(host.serve())
    assert host.process.wait() == 0
    assert lines[-1].endswith("end")
    numbers = [int(line.split()[1]) for line in lines if line.startswith("line ") and line[5:].isdigit()]
    assert numbers == sorted(set(numbers))
    assert lines.count(" next") + sum(line.endswith(" next") and line != " next" for line in lines) == 200


@pytest.mark.parametrize("value", ["3", "None", "b'bytes'"])
def test_what_is_no_text_is_refused(run: type[Host], value: str) -> None:
    body = f"""
burst()
try: sys.stdout.write({value})
except TypeError as error: print("write() argument" in str(error))
print("\\udc80 \\N{{SNOWMAN}}")
"""
    assert after(run(body).serve()) == ["True", "? \N{SNOWMAN}"]


@pytest.mark.parametrize(
    "lack",
    [
        "threading.Thread.start = lambda _thread: exec('raise RuntimeError')",
        "may_take(SIZE_BYTES // 2)",
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, -1))",
    ],
)
def test_lines_take_the_pipe_where_there_is_no_thread_or_memory(run: type[Host], lack: str) -> None:
    host = run(f"{lack}\nfor i in range(20_000): print('line', i)\nassert not is_on()")
    assert host.serve().splitlines() == [f"line {i}" for i in range(20_000)]
    assert host.process.wait() == 0


def test_lines_take_a_slower_way_where_memory_is_scarce(run: type[Host]) -> None:
    """There's room for the memory that is shared, but not for the bytes whose pages it replaces."""
    check = f"assert is_on()\n{IS_MMAP}"
    host = run(f"may_take(2 * SIZE_BYTES)\nburst()\nfor i in range(1000): print('line', i)\n{check}")
    assert after(host.serve()) == [f"line {i}" for i in range(1000)]
    assert host.process.wait() == 0


def test_a_text_longer_than_the_memory_comes_whole(run: type[Host]) -> None:
    """Here it's 64 MiB."""
    host = run("""
from monarch_nb._wire import text_memory
text_memory.SIZE_BYTES = 1 << 26
burst()
for i in range(100): print("line", i)
print("x" * (1 << 26))
for i in range(100): print("behind", i)
assert not is_on()
""")
    lines = after(host.serve())
    assert host.process.wait() == 0
    assert lines == [
        *(f"line {i}" for i in range(100)),
        "x" * (1 << 26),
        *(f"behind {i}" for i in range(100)),
    ]


def test_long_lines_come_whole(run: type[Host]) -> None:
    body = """
burst()
for size in (1000, 100_000, 300_000, 10): print("x" * size)
for i in range(100): print("y" * 50, end="")
print()
"""
    assert after(run(body).serve()) == [*("x" * n for n in (1000, 100_000, 300_000, 10)), "y" * 5000]
