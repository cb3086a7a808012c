"""What goes wrong when people run scripts, map functions and call the package with what makes no sense, typed
into cells: one clear error each, a red cell, and a mesh that goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from kernels import ANSI, Notebook, shown

SCRIPTS = {
    "syntax.py": "import os\ndef f(:\n    pass\n",
    "arguments.py": (
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--lr', type=float, required=True)\nparser.parse_args()\n"
    ),
    "exits.py": "import os, sys\nsys.exit(3 if os.environ['RANK'] == '2' else 0)\n",
    "runs.py": "import os\nprint('rank', os.environ['RANK'])\n",
}
DEFINITIONS = """
import threading
import monarch_nb
from monarch_nb.actor import Actor, endpoint
class Plain(Actor):
    @endpoint
    def go(self): pass
lock = threading.Lock()
def double(x): return 2 * x
def locked(x): return threading.Lock()
def foreign(x):
    import sys, types
    sys.modules['only_there'] = types.ModuleType('only_there')
    exec('class Of: pass', sys.modules['only_there'].__dict__)
    return sys.modules['only_there'].Of()
class Unmade:
    def __getstate__(self): return {'a': 1}
    def __setstate__(self, state): raise RuntimeError('no such state')
def unmade(x): return Unmade()
def limit(num_bytes):
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, -1))
def with_room(do, num_bytes=1 << 22):
    limit(num_bytes)
    try:
        return do()
    finally:
        limit(-1)
def large(x):
    limit(1 << 22)
    return bytearray(x)
big = bytearray(1 << 23)
def broken():
    yield from (1, 2)
    raise OSError('the disk is gone')
"""
CASES = {
    "%mesh run nowhere.py": (
        r"ranks 0-2: FileNotFoundError: there's no script 'nowhere\.py' in \S+ Name a file that is there on "
        r"the ranks' machine; a module is run by %mesh run -m NAME"
    ),
    "%mesh run -m no_such.train": (
        r"ranks 0-2: ModuleNotFoundError: .*No module named 'no_such'.*: %mesh run -m takes a module that "
        r"`python -m` in \S+ would find"
    ),
    "%mesh run syntax.py": r"ranks 0-2: SyntaxError: invalid syntax \(syntax\.py, line 2\)\n.*syntax\.py:2\n",
    "%mesh run arguments.py": (
        r"\[0-2\] arguments\.py: error: the following arguments are required: --lr\n"
        r"(?s:.*)ranks 0-2: ScriptExit: the script has exited with code 2"
    ),
    "%mesh run arguments.py --lr high": (
        r"\[0-2\] arguments\.py: error: argument --lr: invalid float value: 'high'\n"
        r"(?s:.*)ranks 0-2: ScriptExit: the script has exited with code 2"
    ),
    "%mesh run exits.py": (
        r"the cell failed on 1 of 3 ranks\nrank 2: ScriptExit: the script has exited with code 3"
    ),
    "%mesh run --gpu 3 runs.py": (
        r"MeshUsageError: %mesh run: unrecognized arguments: --gpu\..* Usage: %mesh run .*SCRIPT"
    ),
    "%mesh run --nproc_per_node=3 runs.py": (
        r"unrecognized arguments: --nproc_per_node=3\. A script runs on all ranks of the mesh; --ranks 0-1 "
        r"chooses some\. Usage: %mesh run"
    ),
    "%mesh run --rdzv-endpoint h:1 runs.py": (
        r"unrecognized arguments: --rdzv-endpoint\. Ranks of a run meet at a store of their own"
    ),
    "mesh.map(double, broken()).get()": r"----> 4 .*raise OSError|OSError: the disk is gone",
    "mesh.map(double, [1, lock, 3]).get()": r"CannotPickle: double, item 1: cannot pickle '_thread\.lock'",
    "mesh.map(lambda x: lock, [1])": r"CannotPickle: <lambda>, global `lock`: cannot pickle '_thread\.lock'",
    "mesh.map(locked, [1, 2]).get()": (
        r"^ERROR ActorError: locked, item 0: failed on rank \d\n"
        r"rank \d: CannotPickle: return value: cannot pickle '_thread\.lock' object\ncalled from:\n  Cell"
    ),
    "mesh.execute(locked, 1).get()": (
        r"^ERROR ActorError: execute\(locked\): 3 of 3 ranks failed\n"
        r"ranks 0-2: CannotPickle: return value: cannot pickle '_thread\.lock' object\ncalled from:\n  Cell"
    ),
    "mesh.map(foreign, [1, 2]).get()": (
        r"^ERROR CannotUnpickle: foreign, item 0: the answer can't be read here: ModuleNotFoundError: "
        r"No module named 'only_there'\. Let this program have the module of its class, .*\ncalled from:"
    ),
    "mesh.execute(unmade, 1).get()": (
        r"^ERROR CannotUnpickle: execute\(unmade\): the answer can't be read here: RuntimeError: "
        r"no such state\."
        r"(?s:.*)in __setstate__"
    ),
    "mesh.executor().submit(foreign, 1).result()": (
        r"^ERROR CannotUnpickle: foreign, a task: the answer can't be read here: ModuleNotFoundError"
    ),
    "mesh.push({'foreign': foreign}); mesh.run('found = foreign(1)'); mesh.pull('found')": (
        r"^ERROR CannotUnpickle: pull of found: the answer can't be read here: ModuleNotFoundError: No module"
    ),
    "with_room(lambda: mesh.map(len, ['a', big, 'b']).get())": (
        r"^ERROR SharedMemoryError: len, item 1: no 8,\d+,\d+ bytes of shared memory: File too large\. "
        r"Free memory on that machine, or move less at once\ncalled from:\n  Cell"
    ),
    "with_room(lambda: mesh.push({'big': big}))": (
        r"^ERROR SharedMemoryError: no 8,\d+,\d+ bytes of shared memory: File too large\. Free memory on that"
    ),
    "with_room(lambda: get_ipython().run_line_magic('mesh', 'push big'))": (
        r"^ERROR SharedMemoryError: %mesh push big: no 8,\d+,\d+ bytes of shared memory: File too"
    ),
    "mesh.map(large, [1 << 23]).get()": (
        r"^ERROR ActorError: large, item 0: failed on rank \d\n"
        r"rank \d: SharedMemoryError: no 8,\d+,\d+ bytes of shared memory: File too large\. Free memory"
    ),
    "mesh.map(double, 5)": (
        r"MeshUsageError: mesh\.map takes items that can be iterated, not 5, of type int: as in mesh\.map\("
    ),
    "mesh.map('double', [1])": (
        r"MeshUsageError: mesh\.map takes a function first, not 'double', of type str: as in mesh\.map\("
    ),
    "mesh.execute(double, [lock])": (
        r"CannotPickle: execute\(double\), argument `x`, item 0: cannot pickle '_thread\.lock'"
    ),
    "run = mesh.map(double, range(9)); run.cancel(); run.get()": (
        r"^ERROR CancelledError: the map of double was cancelled\ncalled from:\n  Cell"
    ),
    "%mesh push lock": (
        r"^ERROR CannotPickle: %mesh push lock: push of lock, key 'lock': cannot pickle '_thread\.lock' "
        r"object$"
    ),
    "mesh.push(5)": r"MeshUsageError: push takes variables by name, as in \{'lr': 0\.1\}; not 5",
    "mesh.pull('a b')": r"ValueError: a variable's name is an identifier, not 'a b'",
    "mesh.slice(procs=9)": r"IndexError: procs=9 is out of range: procs has size 3 \(0 to 2\)",
    "mesh.slice(gpus=0)": r"ERROR KeyError: there is no dimension 'gpus'; this mesh has procs=3",
    "mesh.run('1', [0, 9])": (
        r"RankSetError: can't take ranks \[0, 9\]: rank 9 is out of range, 0 to 2 would do\. This mesh has"
    ),
    "mesh.restart(None)": r"RankSetError: can't take ranks None: it is neither text nor a list of numbers\.",
    "mesh.resize(procs=0)": (
        r"HealError: not resized, or not completely:\na dimension has a size of at least 1, not procs=0"
    ),
    "mesh.set_lease(-1)": r"MeshUsageError: idle_timeout_s is a number of seconds above 0, .* not -1",
    "mesh.on_failure('mend')": r"ValueError: on_failure takes 'stop', 'heal', 'shrink' or a function, not",
    "mesh.spawn('plain', Plain).nosuch.call()": r"AttributeError: Plain has no endpoint 'nosuch'; it has: go",
    "monarch_nb.start(5)": r"MeshUsageError: a mesh's name is letters, digits, .*; not 5",
    "monarch_nb.start('other', {'gpus': 0})": r"ValueError: size of 'gpus' must be at least 1, not 0",
    "monarch_nb.start('other', {'gpus': 1.5})": r"TypeError: size of 'gpus' must be an int, not float: 1\.5",
    "monarch_nb.start('other', 5)": r"MeshUsageError: sizes are given by dimension, as in .*; not 5",
    "monarch_nb.start('other', num_hosts=-1)": r"MeshUsageError: num_hosts is a whole number, 0 or more; not",
    "monarch_nb.start('other', {'gpus': 1}, env={'A=B': ''})": (
        r"ValueError: env: no process can have 'A=B': '' in its environment; a name has no '='"
    ),
    "monarch_nb.start('other', {'gpus': 1}, idle_timeout_s='1h')": (
        r"MeshUsageError: idle_timeout_s is a number of seconds above 0, .* not '1h'"
    ),
    "mesh.push({'kept': {'by': lock}})": (
        r"CannotPickle: push of kept, key 'kept', key 'by': cannot pickle '_thread\.lock'"
    ),
    "mesh.sync(timeout_s='x')": r"TypeError: sync: timeout_s must be a number of seconds, not str: 'x'",
    "mesh.sync(env=True, to=['box'], from_index=True)": r"MeshUsageError: sync: --to 'box' is sent ",
    "mesh.sync(include='*.py')": r"TypeError: sync: include must be a list of str, not str: '\*\.py'",
    "mesh.submit(5)": r"TypeError: submit: source must be a str, not int: 5\ncalled from:\n  Cell",
    "mesh.cells.submit('1', timeout='x')": (
        r"TypeError: submit: timeout must be a number of seconds or None, not str: 'x'"
    ),
    "mesh.run()": r"TypeError: run\(\) missing 1 required positional argument: 'source'",
    "mesh.run('1', watcher=5)": r"TypeError: run: watcher must be an object with the methods of a Watcher",
    "mesh.heal(timeout_s='x')": r"TypeError: heal: timeout_s must be a number of seconds, not str: 'x'",
    "mesh.take_hosts(5)": r"TypeError: take_hosts: hosts must be a list of int, not int: 5",
    "mesh.diff(5)": r"TypeError: diff: name must be a str, not int: 5",
    "mesh.vars(names='lr')": r"TypeError: vars: names must be a list of str, not str: 'lr'",
    "mesh.last_lines(limit='x')": r"TypeError: last_lines: limit must be an int, not str: 'x'",
    "mesh.watch_status(5)": r"TypeError: watch_status: on_change must be callable, not int: 5",
    "mesh.doctor(5)": r"RankSetError: can't take ranks 5: it is neither text nor a list of numbers\.",
    "mesh.resize(procs='x')": r"TypeError: resize: procs must be an int, not str: 'x'",
    "mesh.executor(retries='x')": r"TypeError: executor: retries must be an int, not str: 'x'",
    "mesh.stop(grace_s='x')": r"TypeError: stop: grace_s must be a number of seconds or None, not str: 'x'",
    "mesh.spawn(5, Plain)": r"TypeError: spawn: name must be a str, not int: 5",
    "mesh.execute(5)": r"TypeError: execute: function must be callable, not int: 5",
    "mesh.journal.export(5)": r"TypeError: export: path must be a path, not int: 5",
    "mesh.sync_mode = 5": r"TypeError: set_mode: mode must be a str, not int: 5",
    "mesh.execute(double, 1).get('x')": r"TypeError: get: timeout must be a number of seconds or None, not",
}
"""What is typed, and what is said of it."""
OUR_FRAMES = re.compile(r"/monarch_nb/[a-z_]+(/[a-z_]+)*\.py|concurrent/futures")


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    folder = tmp_path_factory.mktemp("bad")
    for name, source in SCRIPTS.items():
        (folder / name).write_text(source)
    opened = Notebook()
    opened.run("%load_ext monarch_nb")
    opened.run("%mesh start bad --procs 3")
    opened.run(f"%cd -q {folder}")
    opened.run(DEFINITIONS)
    yield opened
    opened.run("%mesh stop bad")
    opened.close()


@pytest.mark.parametrize("source", CASES)
def test_it_is_one_clear_error_in_a_red_cell(notebook: Notebook, source: str) -> None:
    outputs = notebook.run(source)
    errors = [output for output in outputs if output.output_type == "error"]
    assert len(errors) == 1, shown(outputs)
    text = shown(outputs)
    assert re.search(CASES[source], text), text
    assert not OUR_FRAMES.search(text), text
    printed = ANSI.sub("", errors[0].evalue).splitlines()[-1]
    assert printed and text.count(printed) <= 2, text
    # The mesh is as it was, for all that may be asked of it next.
    assert notebook.text("%%mesh\nrank") == "[0] 0\n[1] 1\n[2] 2"
    assert "[0] rank 0\n[1] rank 1\n[2] rank 2" in notebook.text("%mesh run runs.py")
    assert notebook.text("mesh.map(double, [3, 4]).get()") == "[6, 8]"


def test_what_a_generator_gave_before_it_raised_is_there(notebook: Notebook) -> None:
    text = notebook.text("for found in mesh.map(double, broken()): print('found', found)")
    assert text.startswith("found 2\nfound 4\nERROR") and text.endswith("OSError: the disk is gone")
    assert not OUR_FRAMES.search(text), text
