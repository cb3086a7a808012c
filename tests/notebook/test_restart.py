"""A kernel that is shut down while it waits for ranks: they go on. Jupyter interrupts a kernel before it
shuts it down, and that interrupt is none.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jupyter_process import JupyterServer, ServedKernel
from kernels import FileLatch, Messages, Notebook, RawKernel

NAME = "restarted"


@pytest.fixture(scope="module")
def mesh() -> Iterator[Notebook]:
    """A notebook that has started a mesh, and looks at it while others come and go."""
    opened = Notebook()
    opened.run(f"%load_ext monarch_nb\n%mesh start {NAME} --procs 2")
    opened.run(
        "from monarch_nb.actor import Actor, endpoint\nclass Worker(Actor):\n    def __init__(self): "
        "self.state = 'made'\n    @endpoint\n    def work(self, gate):\n        import os, time\n    "
        "    print('at work', flush=True)\n        while not os.path.exists(gate): time.sleep(0.01)\n"
        "        self.state = 'done'\n        return self.state\nmesh.spawn('worker', Worker)"
    )
    yield opened
    assert "has ended" in opened.text("%mesh stop -f")
    opened.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    opened = JupyterServer(tmp_path_factory.mktemp("server"))
    yield opened
    if opened.process.poll() is None:
        opened.close()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[FileLatch]:
    opened = FileLatch(tmp_path / "go")
    yield opened
    opened.open()


@pytest.fixture
def raw() -> Iterator[RawKernel]:
    opened = RawKernel()
    yield opened
    opened.close()


def load(kernel: Messages) -> str:
    return kernel.run_text(f"%load_ext monarch_nb\n%mesh attach {NAME}")


def begin_cell(kernel: Messages, gate: FileLatch, options: str = "") -> str:
    """Start a cell that waits at a gate; return once it's there."""
    load(kernel)
    cell = kernel.start(f"%%mesh {options}\nprint('step 1')\n{gate.source}\nprint('step 2')\nrank * 100")
    kernel.wait_for(cell, "[0-1] step 1")
    return cell


def check_missed(kernel: Messages, gate: FileLatch) -> None:
    """A new kernel sees the cell from its beginning, and how it goes on; the next one sees nothing any
    more.
    """
    assert "1 cell is still running" in kernel.run_text("%load_ext monarch_nb")
    cell = kernel.run(f"%mesh attach {NAME}")
    assert (
        "step 1" in kernel.text(cell)
        and "still running" in kernel.text(cell)
        and "step 2" not in kernel.text(cell)
    )
    gate.open()
    kernel.wait_for(cell, "[1] 100")
    kernel.wait_for(cell, "ended")
    assert "step 2" in kernel.text(cell)
    assert "step" not in kernel.run_text(f"%mesh attach {NAME}")
    assert " ok " in kernel.run_text("%mesh history --last 1")


def check_left(text: str) -> None:
    """The old cell's display says what has become of it."""
    lines = text.splitlines()
    assert lines[0] == "[0-1] step 1"
    assert "this kernel was shut down at " in text and f"goes on in mesh '{NAME}'" in text
    assert "interrupted" not in text


def plainly(kernel: RawKernel) -> None:
    kernel.manager.restart_kernel(now=False)


def late(kernel: RawKernel) -> None:
    """A busy server: the request comes half a second after the interrupt, which is what this is about."""
    kernel.manager.interrupt_kernel()
    time.sleep(0.5)
    kernel.manager.request_shutdown(restart=True)
    kernel.manager.finish_shutdown()
    kernel.manager.start_kernel()


def after_a_stop(kernel: RawKernel) -> None:
    """Two interrupts, half a second apart, and the second comes from the restart."""
    kernel.manager.interrupt_kernel()
    time.sleep(0.5)
    kernel.manager.restart_kernel(now=False)


@pytest.mark.parametrize("restart", [plainly, late, after_a_stop])
def test_the_cell_runs_on_when_its_kernel_is_restarted(
    mesh: Notebook, raw: RawKernel, gate: FileLatch, restart: Callable[[RawKernel], None]
) -> None:
    kernel = raw
    cell = begin_cell(kernel, gate)
    restart(kernel)
    kernel.take_the_rest()
    kernel.begin_anew()
    check_missed(kernel, gate)
    check_left(kernel.text(cell))


def test_a_kernel_that_is_killed_passes_nothing_on(mesh: Notebook, raw: RawKernel, gate: FileLatch) -> None:
    begin_cell(raw, gate)
    raw.manager.restart_kernel(now=True)  # an interrupt, and SIGKILL right behind it
    raw.begin_anew()
    check_missed(raw, gate)


def test_the_server_restarts_and_deletes_kernels(
    mesh: Notebook, server: JupyterServer, gate: FileLatch, tmp_path: Path
) -> None:
    kernel = ServedKernel(server)
    cell = begin_cell(kernel, gate)
    kernel.ask("restart")
    kernel.take_the_rest()
    kernel.begin_anew()
    check_missed(kernel, gate)
    check_left(kernel.text(cell))
    second = FileLatch(tmp_path / "second")
    cell = kernel.start(f"%%mesh --async\nprint('step 1')\n{second.source}\nprint('step 2')\nrank * 100")
    kernel.wait_for(cell, "[0-1] step 1")
    kernel.delete()
    kernel.take_the_rest()
    check_left(kernel.text(cell).partition("waits for it\n")[2])
    third = ServedKernel(server)
    check_missed(third, second)
    third.delete()


def test_the_server_deletes_a_kernel_that_waits_for_its_cell(
    mesh: Notebook, server: JupyterServer, gate: FileLatch
) -> None:
    kernel = ServedKernel(server)
    cell = begin_cell(kernel, gate)
    kernel.delete()
    kernel.take_the_rest()
    check_left(kernel.text(cell))
    following = ServedKernel(server)
    check_missed(following, gate)
    following.delete()


def test_a_call_that_is_waited_for_goes_on(mesh: Notebook, server: JupyterServer, gate: FileLatch) -> None:
    kernel = ServedKernel(server)
    load(kernel)
    path = str(gate._path)
    cell = kernel.start(f"mesh.actors['worker'].work.call({path!r}).get()")
    kernel.wait_for(cell, "at work")
    kernel.ask("restart")
    kernel.take_the_rest()
    kernel.begin_anew()
    assert f"the call of worker.work goes on in mesh '{NAME}'" in kernel.text(cell)
    load(kernel)
    gate.open()
    state = "list(mesh.actors['worker'].work.call(" + repr(path) + ").get(60).values())"
    assert "['done', 'done']" in kernel.run_text(state)
    kernel.delete()


def test_a_call_goes_on_though_the_interrupt_had_ended_the_wait_when_the_shutdown_came(
    mesh: Notebook, raw: RawKernel, gate: FileLatch
) -> None:
    load(raw)
    # The cell isn't over yet when the kernel has decided, as on a loaded machine.
    source = (
        f"try: mesh.actors['worker'].work.call({str(gate._path)!r}).get()\nfinally: import time; "
        "time.sleep(0.3)"
    )
    cell = raw.start(source)
    raw.wait_for(cell, "at work")
    late(raw)
    raw.take_the_rest()
    raw.begin_anew()
    assert f"the call of worker.work goes on in mesh '{NAME}'" in raw.text(cell)


def test_a_real_interrupt_is_passed_on_without_waiting(
    mesh: Notebook, server: JupyterServer, gate: FileLatch
) -> None:
    kernel = ServedKernel(server)
    load(kernel)
    # Without the server's word it would be held for longer than this test takes.
    kernel.run("import monarch_nb._client.kernel\nmonarch_nb._client.kernel.HOLD_S = 600")
    cell = begin_cell(kernel, gate)
    kernel.ask("interrupt")
    kernel.finish(cell)
    assert "KeyboardInterrupt: ranks 0-1 were interrupted" in kernel.text(cell)
    cell = kernel.start(f"mesh.actors['worker'].work.call({str(gate._path)!r}).get()")
    kernel.wait_for(cell, "at work")
    kernel.ask("interrupt")
    kernel.finish(cell)
    assert "ranks 0-1 of worker.work were interrupted" in kernel.text(cell)
    kernel.delete()


def test_the_server_ends(mesh: Notebook, server: JupyterServer, raw: RawKernel, gate: FileLatch) -> None:
    kernel = ServedKernel(server)
    cell = begin_cell(kernel, gate)
    server.process.send_signal(signal.SIGTERM)
    kernel.take_the_rest()
    check_left(kernel.text(cell))
    assert server.process.wait(60) == 0
    check_missed(raw, gate)
