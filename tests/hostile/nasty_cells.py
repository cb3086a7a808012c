"""Cells that do what user code shouldn't, and what is wanted of each. A new fault is one more line.

Whatever a cell does, it ends, what it shows comes from the user's code and not from ours, and the next cell
runs. That is checked for each; a line says the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

End = Literal["ok", "error", "dies", "any"]


@dataclass(frozen=True)
class Nasty:
    """A cell.

    Attributes:
        name: what it's about.
        source: what ranks run.
        end: `ok`; `error`: it raises on the ranks; `dies`: the ranks end, and are healed afterwards; `any`:
            either, if only it ends.
        shows: words that must be in what the notebook shows.
        flags: of `%%mesh`.
        mends: a cell that puts right what this one has broken in the ranks, before the next one.
        long: left out of the short form.
        own_frames: frames of ours may be seen: the standard library prints the whole stack by itself.
    """

    name: str
    source: str
    end: End = "ok"
    shows: tuple[str, ...] = ()
    flags: str = ""
    mends: str = ""
    long: bool = False
    own_frames: bool = False


def _stream(name: str, body: str, end: End = "ok", *shows: str) -> Nasty:
    """A cell that puts something in the place of stdout, and writes."""
    return Nasty(f"stdout: {name}", f"import sys\n{body}\nprint('x')", end, shows)


def _value(name: str, body: str, end: End = "ok", *shows: str) -> Nasty:
    """A cell whose last value is an object that can't be shown in some way."""
    lines = body if body.startswith(" ") else f"    {body}"
    return Nasty(f"value: {name}", f"class Odd:\n{lines}\nOdd()", end, shows)


def _raises(name: str, body: str, *shows: str) -> Nasty:
    """A cell that raises an object of a class that is wrong in some way."""
    lines = body if body.startswith(" ") else f"    {body}"
    return Nasty(f"raises: {name}", f"class Odd(Exception):\n{lines}\nraise Odd('this')", "error", shows)


STREAMS = [
    _stream(
        "a tee without flush",
        "class Tee:\n    def write(self, text): sys.__stdout__.write(text)\nsys.stdout = Tee()",
    ),
    _stream("None", "sys.stdout = None"),
    _stream("None, both", "sys.stdout = sys.stderr = None"),
    _stream("a number", "sys.stdout = 5", "error"),
    _stream(
        "a flush that raises",
        (
            "class Bad:\n    def write(self, t): pass\n    def flush(self): raise OSError('no')\nsys.stdout "
            "= Bad()"
        ),
    ),
    _stream(
        "a write that raises",
        (
            "class Bad:\n    def write(self, t): raise OSError('no room')\n    def flush(self): pass\n"
            "sys.stdout = Bad()"
        ),
        "error",
        "no room",
    ),
    _stream(
        "a flush that exits",
        (
            "class Bad:\n    def write(self, t): pass\n    def flush(self): raise SystemExit(3)\nsys.stdout "
            "= Bad()"
        ),
        "any",
    ),
    _stream(
        "a write that returns nonsense",
        ("class Bad:\n    def write(self, t): return 'x'\n    def flush(self): return 7\nsys.stdout = Bad()"),
    ),
    _stream("closed", "sys.stdout.close()", "any"),
    _stream("deleted", "del sys.stdout", "any"),
    _stream("a file of the user's", "import io\nsys.stdout = io.StringIO()"),
    _stream("detached", "sys.stdout.detach()", "any"),
    _stream("another encoding", "sys.stdout.reconfigure(encoding='utf-16')", "any"),
    _stream("stderr: a number", "sys.stderr = 5"),
    Nasty("fd 1 is closed", "import os\nos.close(1)\nprint('gone')", "any"),
    Nasty("fd 2 is closed", "import os, sys\nos.close(2)\nprint('gone', file=sys.stderr)", "any"),
    Nasty(
        "fds 1 and 2 lead nowhere",
        "import os\nn = os.open('/dev/null', os.O_WRONLY)\nos.dup2(n, 1), os.dup2(n, 2)",
        mends="1",
    ),
    Nasty(
        "half of a character",
        r"import os; os.write(1, b'\xe2\x82'); os.write(1, b'\xac euro\n')",
        shows=("€ euro",),
    ),
    Nasty("bytes that are no text", r"import os; os.write(1, bytes(range(256)) * 40)"),
    Nasty("a lone surrogate", r"print('a\ud800b')", "any"),
    Nasty("a long line without an end", "print('x' * 20_000_000, end='')", shows=("xxx",)),
    Nasty("many lines", "for i in range(100_000): print(i)", shows=("99999",)),
    Nasty("many carriage returns", r"for i in range(20_000): print(f'\r{i}', end='')", shows=("19999",)),
    Nasty("escapes of a terminal", r"print('\x1b[31m\x1b[?25l\x1b]0;title\x07\x1b[2J\x1b[999;999H' * 200)"),
    Nasty("an escape that never ends", r"print('\x1b]777;' + 'x' * 100_000)"),
    Nasty(
        "a mark like ours", r"print('\x1b]777;0123456789abcdef;d;1;bm90IGpzb24=\x07after')", shows=("after",)
    ),
    Nasty(
        "HTML and scripts as text", "print('<script>alert(1)</script></pre></div>' * 50)", shows=("<script>",)
    ),
    Nasty(
        "a thread that goes on printing",
        (
            "import threading, time\ndef f():\n    for i in range(50): print('late', i); time.sleep(0.001)\n"
            "threading.Thread(target=f).start()"
        ),
    ),
    Nasty(
        "a child that goes on printing",
        "import subprocess\nsubprocess.Popen(['sh', '-c', 'sleep 0.2; echo late'])\n1",
    ),
    Nasty("a child that prints much", "!seq 50000", shows=("50000",)),
    Nasty("stdin is read", "import sys\nprint(repr(sys.stdin.read()))", "any"),
    Nasty(
        "logging whose stream is gone",
        (
            "import logging, io\ns = io.StringIO(); h = logging.StreamHandler(s); s.close()\n"
            "logging.getLogger('x').addHandler(h); logging.getLogger('x').error('e')"
        ),
        mends="import logging; logging.getLogger('x').handlers.clear()",
        own_frames=True,
    ),
    Nasty(
        "print is None",
        "import builtins\nbuiltins.print = None",
        mends=(
            "import builtins, sys; builtins.print = lambda *a, **k: sys.stdout.write(' '.join(map(str, a)) + "
            "'\\n') and None"
        ),
    ),
]

EXCEPTIONS = [
    _raises("__str__ raises", "def __str__(self): raise ValueError('inner')", "Odd"),
    _raises("__str__ raises itself", "def __str__(self): raise self", "Odd"),
    _raises("__str__ ends the process", "def __str__(self): raise SystemExit(7)", "Odd"),
    _raises("__str__ never ends", "def __str__(self): return str(self)", "Odd"),
    _raises("__str__ returns a number", "def __str__(self): return 5", "Odd"),
    _raises("__repr__ raises", "def __repr__(self): raise ValueError('inner')", "Odd"),
    _raises(
        "__getattribute__ raises", "def __getattribute__(self, name): raise ValueError('inner')", "inner"
    ),
    _raises("it can't be pickled", "def __reduce__(self): raise TypeError('never')", "Odd: this"),
    _raises("it unpickles to nonsense", "def __reduce__(self): return (int, ('x',))", "Odd: this"),
    _raises("its module is None", "__module__ = None", "this"),
    _raises("its module is a number", "__module__ = 5", "this"),
    _raises("its name is odd", "pass\nOdd.__name__ = Odd.__qualname__ = '<b>' * 3", "this"),
    _raises("notes that are no text", "__notes__ = [5, None]", "this"),
    _raises("notes that are no list", "__notes__ = 5", "this"),
    _raises(
        "its traceback is shown by itself", "def _render_traceback_(self): raise RuntimeError('inner')", "Odd"
    ),
    _raises("_render_traceback_ is nonsense", "def _render_traceback_(self): return 5", "Odd"),
    _raises(
        "a metaclass that lies",
        (
            "pass\nclass Meta(type):\n    def __instancecheck__(c, o): raise ValueError('no')\nclass "
            "Odd(Exception, metaclass=Meta): pass"
        ),
        "this",
    ),
    Nasty(
        "raises: a message of 20 MB", "raise ValueError('long ' * 4_000_000)", "error", ("ValueError: long",)
    ),
    Nasty(
        "raises: a message of 100,000 lines",
        "raise ValueError('line\\n' * 100_000)",
        "error",
        ("ValueError: line",),
    ),
    Nasty(
        "raises: a chain of 300",
        (
            "e = None\nfor i in range(300):\n    try: raise ValueError(i) from e\n    except ValueError as "
            "x: e = x\nraise e"
        ),
        "error",
        ("290 errors of this chain", ": 299"),
    ),
    Nasty(
        "raises: it is its own cause", "e = ValueError('loop')\ne.__cause__ = e\nraise e", "error", ("loop",)
    ),
    Nasty(
        "raises: causes in a ring",
        "a, b = ValueError('a1'), ValueError('b1')\na.__cause__ = b; b.__cause__ = a\nraise a",
        "error",
        ("a1",),
    ),
    Nasty(
        "raises: a group in a group",
        "raise ExceptionGroup('all', [ValueError('one'), ExceptionGroup('some', [KeyError('two')] * 50)])",
        "error",
        ("all",),
    ),
    Nasty(
        "raises: a base exception",
        "class Stop(BaseException): pass\nraise Stop('now')",
        "error",
        ("Stop: now",),
    ),
    Nasty("raises: KeyboardInterrupt", "raise KeyboardInterrupt('mine')", "error"),
    Nasty("raises: GeneratorExit", "raise GeneratorExit", "error", ("GeneratorExit",)),
    Nasty("raises: StopIteration", "raise StopIteration(5)", "error", ("StopIteration",)),
    Nasty(
        "raises: CancelledError", "import asyncio\nraise asyncio.CancelledError", "error", ("CancelledError",)
    ),
    Nasty(
        "raises: CancelledError in a coroutine",
        "import asyncio\nawait asyncio.sleep(0)\nraise asyncio.CancelledError",
        "error",
        ("CancelledError",),
    ),
    Nasty("raises: a number", "raise 5", "error", ("TypeError",)),
    Nasty("raises: a SyntaxError by hand", "raise SyntaxError('made up', ('f', 'x', None, 5))", "error"),
    Nasty(
        "raises: a SyntaxError with odd fields",
        "e = SyntaxError('made up'); e.lineno = 'x'; e.text = 7; e.filename = 3\nraise e",
        "error",
    ),
    Nasty("raises: endless recursion", "def f(): f()\nf()", "error", ("RecursionError",)),
    Nasty("raises: no memory", "[0] * 10**15", "error", ("MemoryError",)),
    Nasty("raises: in __del__", "class D:\n    def __del__(self): raise ValueError('late')\nD()\n1"),
    Nasty("sys.exit(0)", "import sys\nsys.exit(0)", "any"),
    Nasty("sys.exit with a text", "import sys\nsys.exit('enough')", "error", ("enough",)),
    Nasty("sys.exit with an object", "import sys\nsys.exit(object())", "error"),
    Nasty("quit()", "quit()", "any"),
    Nasty("exit(3)", "exit(3)", "any"),
    Nasty(
        "sys.excepthook raises",
        "import sys\nsys.excepthook = lambda *a: 1 / 0\nraise ValueError('seen')",
        "error",
        ("ValueError: seen",),
        mends="import sys; sys.excepthook = sys.__excepthook__",
    ),
    Nasty("no such name", "no_such_name", "error", ("NameError",)),
    Nasty(
        "code that is compiled from nothing",
        "exec(compile('1/0', '', 'exec'))",
        "error",
        ("ZeroDivisionError",),
    ),
    Nasty(
        "code of a file that isn't there",
        "exec(compile('\\n' * 50 + '1/0', '/no/such/file.py', 'exec'))",
        "error",
        ("ZeroDivisionError",),
    ),
    Nasty(
        "code with a file name that is binary",
        "exec(compile('1/0', '/dev/zero', 'exec'))",
        "error",
        ("ZeroDivisionError",),
    ),
    Nasty(
        "code with a file name that hangs",
        (
            "import os, tempfile\npipe = tempfile.mkdtemp() + '/p'; os.mkfifo(pipe)\nexec(compile('import "
            "time\\ntime.sleep(1000)', pipe, 'exec'))"
        ),
        "error",
        ("within 1 s",),
        flags="--timeout 1",
    ),
]

VALUES = [
    _value("__repr__ raises", "def __repr__(self): raise ValueError('inner')", "any", "inner"),
    _value("__repr__ returns a number", "def __repr__(self): return 5", "any"),
    _value("__repr__ never ends", "def __repr__(self): return repr(self)", "any"),
    _value("__repr__ ends the process", "def __repr__(self): raise SystemExit(9)", "any"),
    _value("__repr__ of 20 MB", "def __repr__(self): return 'r' * 20_000_000", "ok", "rrr"),
    _value(
        "_repr_html_ raises",
        "def _repr_html_(self): raise ValueError('inner')\n    def __repr__(self): return 'plain'",
        "any",
        "plain",
    ),
    _value("_repr_html_ returns bytes", "def _repr_html_(self): return b'bytes'", "any"),
    _value("_repr_html_ returns a number", "def _repr_html_(self): return 5", "any"),
    _value("_repr_png_ of nonsense", "def _repr_png_(self): return b'not a picture'", "any"),
    _value(
        "a bundle with a tuple for a key",
        "def _repr_mimebundle_(self, **k): return {(1, 2): 'x', 'text/plain': 'plain'}",
        "any",
        "plain",
    ),
    _value(
        "a bundle that is a ring",
        (
            "def _repr_mimebundle_(self, **k):\n        d = {}; d['application/json'] = d; d['text/plain'] = "
            "'plain'; return d"
        ),
        "any",
        "plain",
    ),
    _value(
        "a bundle with a set",
        "def _repr_mimebundle_(self, **k): return {'application/json': {1, 2}, 'text/plain': 'plain'}",
        "any",
        "plain",
    ),
    _value(
        "a bundle with NaN",
        (
            "def _repr_mimebundle_(self, **k): return {'application/json': {'x': float('nan')}, "
            "'text/plain': 'plain'}"
        ),
        "any",
    ),
    _value(
        "a bundle with HTML that is a number",
        "def _repr_mimebundle_(self, **k): return {'text/html': 5, 'text/plain': 'plain'}",
        "any",
        "plain",
    ),
    _value(
        "a bundle with None",
        "def _repr_mimebundle_(self, **k): return {None: None, 'text/plain': None}",
        "any",
    ),
    _value("a bundle that is a number", "def _repr_mimebundle_(self, **k): return 5", "any"),
    _value(
        "a bundle with an odd picture",
        "def _repr_mimebundle_(self, **k): return {'image/png': 'not base64 !', 'text/plain': 'plain'}",
        "any",
    ),
    _value(
        "a bundle that is deep",
        (
            "def _repr_mimebundle_(self, **k):\n        d = 'leaf'\n        for _ in range(5000): d = [d]\n  "
            "      return {'application/json': d, 'text/plain': 'plain'}"
        ),
        "any",
        "plain",
    ),
    _value("its class lies", "@property\n    def __class__(self): return int", "any"),
    _value("__class__ raises", "@property\n    def __class__(self): raise ValueError('no')", "any"),
    _value(
        "it answers to every name",
        "def __getattr__(self, name): return self\n    def __call__(self, *a, **k): return self",
        "any",
    ),
    _value("every name raises", "def __getattr__(self, name): raise ValueError(name)", "any"),
    _value(
        "__eq__ and __bool__ raise",
        (
            "def __eq__(self, o): raise ValueError\n    def __bool__(self): raise ValueError\n    __hash__ = "
            "None"
        ),
        "any",
    ),
    Nasty("value: a list in itself", "a = []; a.append(a); a", shows=("[[...]]",)),
    Nasty(
        "value: displayed nonsense",
        (
            "from IPython.display import publish_display_data\npublish_display_data({'text/html': 5, ('t',): "
            "object(), 'text/plain': object()})"
        ),
        "any",
    ),
    Nasty(
        "value: displayed with odd metadata",
        (
            "from IPython.display import display\ndisplay({'text/plain': 'plain'}, raw=True, metadata={'x': "
            "{1, 2}, (1,): 2})"
        ),
        "any",
    ),
    Nasty(
        "value: displayed with an odd id",
        "from IPython.display import display\ndisplay('plain', display_id=(1, 2))",
        "any",
    ),
    Nasty(
        "value: a picture of 5 MB",
        "from IPython.display import Image\nImage(data=bytes(5_000_000), format='png')",
        "any",
    ),
    Nasty("output: it can't be pickled", "import threading; threading.Lock()", "any", flags="--output got"),
    Nasty("output: a generator", "(i for i in 'abc')", "any", flags="--output got"),
    Nasty("output: a module", "import sys; sys", "any", flags="--output got"),
    Nasty(
        "output: pickling raises",
        "class P:\n    def __reduce__(self): raise RuntimeError('no pickle')\nP()",
        "any",
        ("no pickle",),
        flags="--output got",
    ),
    Nasty(
        "output: pickling never ends",
        "class P:\n    def __reduce__(self): return (P, (P(),))\nP()",
        "any",
        flags="--output got",
    ),
    Nasty("output: 100 MB", "bytes(100_000_000)", flags="--output got", long=True),
    Nasty("output: nothing", "pass", flags="--output got"),
]

PROCESS = [
    Nasty("os._exit(0)", "import os; os._exit(0)", "dies"),
    Nasty("os._exit(3) by one", "import os\nif rank == 1: os._exit(3)", "dies"),
    Nasty(
        "SIGKILL",
        "import os, signal\nif rank == 0: os.kill(os.getpid(), signal.SIGKILL)",
        "dies",
        ("SIGKILL",),
    ),
    Nasty("a segmentation fault", "import ctypes\nctypes.string_at(0)", "dies", ("SIGSEGV",)),
    Nasty("abort", "import os; os.abort()", "dies", ("SIGABRT",)),
    Nasty(
        "an alarm", "import signal, time\nsignal.alarm(1)\ntime.sleep(30)", "dies", ("SIGALRM",), long=True
    ),
    Nasty("a child that ends well", "import os\np = os.fork()\nif p == 0: os._exit(0)\nos.waitpid(p, 0)"),
    Nasty(
        "a child that leaves the cell",
        (
            "import os\np = os.fork()\nif p == 0: raise SystemExit(7)\n"
            "os.waitstatus_to_exitcode(os.waitpid(p, 0)[1])"
        ),
        "ok",
        ("7",),
    ),
    Nasty(
        "a child that raises",
        (
            "import os\np = os.fork()\nif p == 0: raise ValueError('the child')\n"
            "os.waitstatus_to_exitcode(os.waitpid(p, 0)[1])"
        ),
        "ok",
        ("the child", "1"),
    ),
    Nasty(
        "a child that returns from the cell",
        "import os\np = os.fork()\np and os.waitstatus_to_exitcode(os.waitpid(p, 0)[1])",
        "ok",
        ("0",),
    ),
    Nasty(
        "a child that returns from a coroutine",
        (
            "import os, asyncio\nawait asyncio.sleep(0)\np = os.fork()\np and "
            "os.waitstatus_to_exitcode(os.waitpid(p, 0)[1])"
        ),
        "ok",
        ("0",),
    ),
    Nasty(
        "an orphan that stays",
        "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\n1",
    ),
    Nasty(
        "processes of multiprocessing",
        ("import multiprocessing as m\nwith m.get_context('fork').Pool(2) as p: print(p.map(abs, [-1, -2]))"),
        shows=("[1, 2]",),
    ),
    Nasty(
        "signals are ignored",
        (
            "import signal\nfor s in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, "
            "signal.SIGCHLD): signal.signal(s, signal.SIG_IGN)\n1"
        ),
        mends=(
            "import signal\nfor s in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD): "
            "signal.signal(s, signal.SIG_DFL)\nsignal.signal(signal.SIGINT, signal.default_int_handler)"
        ),
    ),
    Nasty(
        "a thread that never ends",
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n1",
    ),
    Nasty(
        "a thread that never ends, not a daemon",
        "import threading\nthreading.Thread(target=threading.Event().wait).start()\n1",
    ),
    Nasty(
        "a thread that raises",
        "import threading\nt = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
    ),
    Nasty(
        "the directory is gone",
        "import os, tempfile\nd = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)\n1",
        mends="import os; os.chdir('/')",
    ),
    Nasty(
        "an empty environment",
        "import os; kept = dict(os.environ); os.environ.clear()\n1",
        mends="os.environ.update(kept)",
    ),
    Nasty("umask 777", "import os; kept_umask = os.umask(0o777)\n1", mends="os.umask(kept_umask)"),
    Nasty(
        "no more descriptors",
        (
            "import resource\nkept_limit = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (5, kept_limit[1]))\nopen('/dev/null')"
        ),
        "error",
        ("Too many open files",),
        mends="resource.setrlimit(resource.RLIMIT_NOFILE, kept_limit)",
    ),
    Nasty(
        "all descriptors are used",
        "kept_files = []\nwhile True: kept_files.append(open('/dev/null'))",
        "error",
        ("Too many open files",),
        mends="kept_files.clear()",
    ),
    Nasty(
        "all descriptors are closed",
        "import os\nos.closerange(3, 10_000)",
        "dies",
        ("ranks 0-1", "os.closerange()", "%mesh heal"),
    ),
    Nasty(
        "an empty path",
        "import sys; kept_path = sys.path[:]; sys.path.clear()\n1",
        mends="sys.path[:] = kept_path",
    ),
    Nasty(
        "modules are gone",
        (
            "import sys\nfor m in [m for m in sys.modules if m.startswith(('json', 'asyncio', "
            "'encodings'))]: del sys.modules[m]\n1"
        ),
    ),
    Nasty(
        "a low limit of recursion",
        "import sys; sys.setrecursionlimit(60)\n1",
        "any",
        mends="import sys; sys.setrecursionlimit(1000)",
    ),
    Nasty(
        "a trace function that raises",
        "import sys\ndef t(*a): raise ValueError('trace')\nsys.settrace(t)\nlen('x')\n(lambda: 1)()",
        "any",
        mends="import sys; sys.settrace(None)",
    ),
    Nasty(
        "a profile function that raises",
        "import sys\nsys.setprofile(lambda *a: 1 / 0)\n1",
        "any",
        mends="import sys; sys.setprofile(None)",
    ),
    Nasty("an atexit function that raises", "import atexit; atexit.register(lambda: 1 / 0)\n1"),
    Nasty(
        "names of ours are overwritten",
        "kept_rank = rank, world_size\nrank = world_size = get_ipython = In = Out = display = _ = None\n1",
        mends=(
            "rank, world_size = kept_rank\ndel In, Out, _\nfrom IPython import get_ipython\nfrom "
            "IPython.display import display"
        ),
    ),
    Nasty(
        "the namespace is emptied",
        "import sys as s\nkept_names = dict(globals()); s.kept_names = kept_names\nglobals().clear()",
        "any",
        mends="import sys as s; globals().update(s.kept_names)",
    ),
    Nasty("__builtins__ is gone", "del __builtins__\n1", "any"),
    Nasty(
        "open is None",
        "import builtins; builtins.kept_open = open; builtins.open = None\n1",
        mends="import builtins; builtins.open = builtins.kept_open",
    ),
    Nasty(
        "json is broken",
        (
            "import base64, json, sys\nsys.kept_json = json.dumps, json.loads, base64.b64encode\njson.dumps "
            "= json.loads = base64.b64encode = None\nraise ValueError('seen')"
        ),
        "error",
        ("ValueError: seen",),
        mends="import base64, json, sys; json.dumps, json.loads, base64.b64encode = sys.kept_json",
    ),
    Nasty("SIGTERM to oneself", "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)", "dies"),
    Nasty(
        "time stands still",
        (
            "import time; time.kept = time.time, time.monotonic, time.sleep\ntime.time = time.monotonic = "
            "lambda: 0.0; time.sleep = lambda s: None\n1"
        ),
        mends="import time; time.time, time.monotonic, time.sleep = time.kept",
    ),
    Nasty(
        "a function that is called when collected",
        "import gc; gc.callbacks.append(lambda *a: 1 / 0); gc.collect()\n1",
        mends="import gc; gc.callbacks.clear()",
    ),
    Nasty(
        "an import that raises on the way",
        (
            "import sys\nclass F:\n    def find_spec(self, *a): raise ValueError('finder')\n"
            "sys.meta_path.insert(0, F())\n1"
        ),
        mends="import sys; del sys.meta_path[0]",
    ),
]

SOURCES = [
    Nasty("source: nothing", " "),
    Nasty("source: a comment", "# nothing"),
    Nasty("source: not Python", "this is no python", "error", ("not Python",)),
    Nasty("source: not indented", "if True:\npass", "error"),
    Nasty("source: 1 MB", "x = '" + "s" * (1 << 20) + "'\nlen(x)", shows=("1048576",)),
    Nasty("source: a NUL", "print('a\0b')", "any"),
    Nasty("source: a surrogate escape", "'\\udc80'.encode()", "error", ("UnicodeEncodeError",)),
    Nasty("source: deeply nested", "(" * 150 + "1" + ")" * 150, "any"),
    Nasty("source: too deeply nested", "(" * 5000 + "1" + ")" * 5000, "any"),
    Nasty("source: a tower of operators", "x = " + "+".join("1" for _ in range(5000)) + "\nx", "any"),
    Nasty("source: other letters", "größe_ﬁ = '東京 🎉'; größe_ﬁ", shows=("東京 🎉",)),
    Nasty("source: a form feed and tabs", "\x0cif 1:\n\tprint('tab')", "any"),
    Nasty("source: Windows' line ends", "a = 1\r\nprint('crlf')\r\n", shows=("crlf",)),
    Nasty("source: no such magic", "%no_such_magic", "any"),
    Nasty("source: no such cell magic", "%%no_such_magic\nx", "any"),
    Nasty("source: a magic of ours in a rank", "%mesh status", "any"),
    Nasty("source: a shell command that fails", "!exit 3"),
    Nasty("source: no such command", "!no-such-command-anywhere", shows=("not found",)),
    Nasty("source: await", "import asyncio\nawait asyncio.sleep(0)\n'awaited'", shows=("awaited",)),
    Nasty(
        "source: an event loop in an event loop",
        "import asyncio\nawait asyncio.sleep(0)\nasyncio.run(asyncio.sleep(0))",
        "error",
        ("cannot be called from a running event loop",),
    ),
    Nasty("source: yield outside", "yield 5", "error"),
    Nasty("source: return outside", "return 5", "error"),
    Nasty("source: __future__ in the middle", "x = 1\nfrom __future__ import annotations", "error"),
]

HANGS = [
    Nasty("hangs: a loop", "while True: pass", "error", ("within 1 s",), flags="--timeout 1"),
    Nasty("hangs: asleep", "import time; time.sleep(1000)", "error", flags="--timeout 1"),
    Nasty("hangs: a coroutine", "import asyncio\nawait asyncio.sleep(1000)", "error", flags="--timeout 1"),
    Nasty(
        "hangs: a lock",
        "import threading\nl = threading.Lock(); l.acquire(); l.acquire()",
        "error",
        flags="--timeout 1",
    ),
    Nasty(
        "hangs: one of two", "import time\nif rank: time.sleep(1000)", "error", ("1",), flags="--timeout 1"
    ),
    Nasty(
        "hangs: it swallows interrupts",
        "import time\nwhile True:\n    try: time.sleep(1000)\n    except BaseException: pass",
        "error",
        flags="--timeout 1",
        long=True,
    ),
    Nasty(
        "hangs: in C", "import ctypes\nctypes.CDLL(None).sleep(1000)", "error", flags="--timeout 1", long=True
    ),
    Nasty(
        "hangs: in C with the interpreter's lock",
        "import ctypes\nctypes.PyDLL(None).sleep(1000)",
        "error",
        flags="--timeout 1",
        long=True,
    ),
    Nasty(
        "hangs: stopped",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        "error",
        flags="--timeout 1",
        long=True,
    ),
]

NASTY = [*STREAMS, *EXCEPTIONS, *VALUES, *PROCESS, *SOURCES, *HANGS]
