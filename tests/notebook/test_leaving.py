"""A notebook that leaves a mesh, or stops it, and still has handles on it: what waits there is told the
truth, and what is typed next says what to type; names that the user has given stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import FileLatch, RawKernel

DEFINED = (
    "import threading\nfrom monarch_nb.actor import Actor, Channel, endpoint\n"
    "class Worker(Actor):\n    @endpoint\n    def ok(self): return 1\n"
    "mine = mesh\nworker = mesh.spawn('worker', Worker)\nprint(worker.ok.call().get().item(gpus=0))"
)
LEFT = (
    "TransportClosed: this program has left mesh 'parting'. Come back, if it still runs: %mesh attach "
    "parting; then take new handles: those from before stay closed"
)
STOPPED = (
    "MeshEnded: mesh 'parting' has ended: this program has stopped it; start it anew: %mesh start parting; "
    "what ran on it: monarch-nb history parting"
)
TYPED = (
    "mine.run('1')",
    "mine.execute(print).get()",
    "mine.status()",
    "mine.spawn('other', Worker)",
    "mine.pull('x')",
    "mine.heal()",
    "mine.stop().get()",
    "worker.ok.call().get()",
    "worker.ok.broadcast()",
)


@pytest.fixture
def kernel() -> Iterator[RawKernel]:
    opened = RawKernel()
    opened.run("%load_ext monarch_nb")
    assert "is ready" in opened.run_text("%mesh start parting --gpus 2")
    opened.run(DEFINED)
    yield opened
    opened.run("%mesh stop parting -f")
    opened.close()


def first_line(kernel: RawKernel, source: str) -> str:
    return kernel.run_text(source).strip().splitlines()[0]


def test_handles_say_what_to_type_and_the_users_names_stay(kernel: RawKernel) -> None:
    assert "detached from mesh 'parting'; it goes on" in kernel.run_text("%mesh detach")
    for typed in TYPED:
        assert first_line(kernel, typed) == LEFT, typed
    assert "has left mesh 'parting'. Come back" in kernel.run_text("mine")
    assert "NameError" in kernel.run_text("print(parting)")
    kernel.run("%mesh attach parting\nmine, worker = mesh, mesh.actors['worker']")
    assert kernel.run_text("print(worker.ok.call().get().item(gpus=1))").strip() == "1"
    assert "has ended" in kernel.run_text("%mesh stop")
    for typed in TYPED:
        assert first_line(kernel, typed) == STOPPED, typed
    assert "mesh 'parting' has ended: it was stopped" in kernel.run_text("mine")


def test_what_waits_is_told_that_it_goes_on(kernel: RawKernel, tmp_path: Path) -> None:
    gate = FileLatch(tmp_path / "go")
    cell = kernel.run(f"%%mesh --async --ranks 0\nprint('begun')\n{gate.source}\nprint('over')")
    kernel.wait_for(cell, "[0] begun")
    wait = (
        "told = {}\n"
        "def wait(name, get):\n"
        "    def run():\n"
        "        try: told[name] = get()\n"
        "        except BaseException as error: told[name] = f'{type(error).__name__}: {error}'\n"
        "    thread = threading.Thread(target=run)\n    thread.start()\n    return thread\n"
        "port, receiver = Channel.open()\n"
        "run = mesh.submit('1', ranks='0')\nn = run.wait_for_number(60)\n"
        "future = mesh.execute(int)\n"
        "threads = [wait('call', future.get), wait('cell', run.get), wait('channel', receiver.recv().get)]\n"
        "%mesh detach\nfor thread in threads: thread.join(60)\n"
        "print(told['call'], told['channel'], told['cell'], n, sep='\\n')"
    )
    shown = [line for line in kernel.run_text(wait).splitlines() if line.strip()]
    assert "detached" in shown[0]
    assert shown[1:3] == [LEFT, LEFT]
    assert shown[3] == (
        f"TransportClosed: this program has left the mesh, and cell #{shown[4]} goes on in mesh 'parting'. "
        "See it: %mesh attach parting"
    )
    kernel.wait_for(cell, "goes on in mesh 'parting'. See it: %mesh attach parting")
    assert "has ended" not in kernel.text(cell)
    back = kernel.run("%mesh attach parting")
    assert "still running" in kernel.text(back)
    assert "detached" in kernel.run_text("%mesh detach")
    kernel.wait_for(back, "goes on in mesh 'parting'")
    again = kernel.run("%mesh attach parting")
    assert "still running" in kernel.text(again), "it counts as seen, though nobody saw its end"
    gate.open()
    kernel.wait_for(again, "[0] over")
    kernel.wait_for(again, "ended")


def test_the_journal_is_good_after_ranks_have_left(kernel: RawKernel, tmp_path: Path) -> None:
    gate = FileLatch(tmp_path / "go")
    kernel.run("%%mesh\nlr = 0.1")
    cell = kernel.run(f"%%mesh --async --ranks 1\nprint('begun')\n{gate.source}\nprint('over')")
    kernel.wait_for(cell, "[1] begun")
    kernel.run("numbers = [int(e.n) for e in mesh.history() if e.kind == 'cell']\n%mesh detach")
    gate.open()
    other = RawKernel()  # it looks only: what ended stays unseen
    resized = other.run_text(
        "%load_ext monarch_nb\nimport time\nfrom monarch_nb import mesh\n"
        "m = mesh.attach('parting', listens=False)\n"
        "while any(e.ended is None for e in m.history()): time.sleep(0.01)\n"
        "print(m.resize(gpus=1).messages)"
    )
    assert "the mesh is now gpus=1" in resized
    other.close()

    assert "over" in kernel.run_text("%mesh attach parting"), "what was missed on a rank that has left"
    kernel.run("first, second = numbers")
    assert kernel.run_text("%mesh result {second}").strip() == "[1] begun\n[1] over"
    for number, ranks in (("first", "0-1"), ("second", "1")):
        assert f"ran on rank{'s' * (len(ranks) > 1)} {ranks}, and rank 1 left mesh 'parting' since. " in (
            kernel.run_text(f"%mesh rerun {{{number}}}")
        )
    kernel.run(f"%mesh export {tmp_path}/out.py\n%mesh export {tmp_path}/out.ipynb")
    script = (tmp_path / "out.py").read_text()
    assert "\nlr = 0.1\n" in script
    assert "ranks 1, ok: the mesh no longer has these ranks\n# print('begun')" in script
    compile(script, "out.py", "exec")
    assert "# ran on rank 1, which the mesh no longer has" in (tmp_path / "out.ipynb").read_text()
    kernel.run("%%mesh\nimport os; os._exit(3)")
    assert "replayed on rank 0: cell #" in kernel.run_text("%mesh heal --replay")
    assert kernel.run_text("%%mesh\nlr").strip() == "0.1"
