"""`%mesh` and `%%mesh` in a real kernel."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from kernels import Notebook


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    opened = Notebook()
    opened.run("%load_ext monarch_nb")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def show(notebook: Notebook) -> Iterator[Callable[[str], str]]:
    assert "is ready; torch.distributed is ready (gloo)" in notebook.text(
        "%mesh start test --gpus 4 --env FLAVOUR=sour --init-process-group gloo"
    )
    yield notebook.text
    assert "has ended" in notebook.text("%mesh stop test")


def test_output_is_folded_and_values_shown(show: Callable[[str], str]) -> None:
    assert show("%%mesh\nprint('same')\nrank // 2").splitlines() == ["[0-3] same", "[0-1] 0", "[2-3] 1"]


def test_namespace_persists_and_ranks_are_picked(show: Callable[[str], str]) -> None:
    show("%%mesh\nx = rank * 2")
    assert show("%%mesh --ranks 1,3\nx") == "[1] 2\n[3] 6"
    assert show("%%mesh --ranks gpus=2:4\nx") == "[2] 4\n[3] 6"


def test_cells_are_ipython(show: Callable[[str], str]) -> None:
    assert show("%%mesh --ranks 0\n!echo from a shell") == "[0] from a shell"
    assert show("%%mesh\nimport asyncio\nawait asyncio.sleep(0, 'awaited')") == "[0-3] 'awaited'"
    assert "per loop" in show("%%mesh --ranks 0\n%timeit -n1 -r1 pass")


def test_environment_is_that_of_torchrun(show: Callable[[str], str]) -> None:
    source = (
        "import os\n[os.environ[k] for k in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR', 'FLAVOUR')]"
    )
    assert show(f"%%mesh --ranks 2\n{source}") == "[2] ['2', '4', '2', '127.0.0.1', 'sour']"
    assert show("%%mesh --ranks 2\nint(os.environ['MASTER_PORT']) > 0") == "[2] True"


def test_cells_know_their_place(show: Callable[[str], str]) -> None:
    assert show("%%mesh --ranks 2\n(point['gpus'], dict(mesh.sizes), str(device), local_rank)") == (
        "[2] (2, {'gpus': 4}, 'cpu', 2)"
    )
    ask = (
        "from monarch_nb.actor import current_rank\nmesh.slice(gpus=0).name == mesh.name, current_rank().rank"
    )
    assert show(f"%%mesh --ranks 3\n{ask}") == "[3] (True, 3)"


def test_collectives_are_ready(show: Callable[[str], str]) -> None:
    source = "import torch, torch.distributed as dist\nt = torch.ones(1)\ndist.all_reduce(t)\nt.item()"
    assert show(f"%%mesh\n{source}") == "[0-3] 4.0"


def test_output_variable_push_and_pull(show: Callable[[str], str]) -> None:
    assert show("%%mesh --output squares\nrank ** 2") == "[0] 0\n[1] 1\n[2] 4\n[3] 9"
    assert show("squares.reduce('sum')") == "14"
    show("factor = 3\n%mesh push factor")
    assert show("%%mesh --ranks 0\nfactor + 1") == "[0] 4"
    assert show("%mesh pull factor") == "ValueMesh(gpus=4): [0-3] 3"
    show("parts = list(range(6))\n%mesh scatter parts")
    assert show("%%mesh\nparts") == "[0] [0, 1]\n[1] [2, 3]\n[2] [4]\n[3] [5]"


def test_rich_displays_come_through(notebook: Notebook, show: Callable[[str], str]) -> None:
    outputs = notebook.run(
        "%%mesh --ranks 0-1\nfrom IPython.display import HTML, display\ndisplay(HTML('<i>hey</i>'))"
    )
    html = "".join(o.data.get("text/html", "") for o in outputs if "data" in o)
    assert "<i>hey</i>" in html


def test_failures_turn_the_cell_red(show: Callable[[str], str]) -> None:
    text = show("%%mesh\nif rank in (1, 2):\n    raise KeyError('gone')\nrank")
    assert "ERROR the cell failed on 2 of 4 ranks\nranks 1-2: KeyError: 'gone'" in text
    assert "raise KeyError('gone')" in text
    assert "monarch_nb" not in text
    assert show("%%mesh\n1") == "[0-3] 1"
    assert show("mesh.last_error.ranks") == "(1, 2)"


def test_ranks_stuck_after_a_failure_are_interrupted(show: Callable[[str], str]) -> None:
    text = show("%%mesh\nimport time\nif rank == 0:\n    raise ValueError('first')\ntime.sleep(600)")
    assert "the cell failed on 1 of 4 ranks; ranks 1-3 were interrupted" in text
    assert show("%%mesh\n2") == "[0-3] 2"


def test_timeout_interrupts(show: Callable[[str], str]) -> None:
    text = show("%%mesh --timeout 0.3\nimport time\ntime.sleep(600)")
    assert "RankTimeout: the cell did not end within 0.3 s: ranks 0-3 were interrupted" in text
    assert show("%%mesh\n3") == "[0-3] 3"


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("%%mesh --ranks 7\n1", "RankSetError: can't read ranks '7': rank 7 is out of range"),
        ("%%mesh\nfor", "this cell is not Python, so nothing was sent"),
        ("%%mesh --name nobody\n1", "mesh 'nobody' is not running. Start it: %mesh start nobody"),
        ("%%mesh --output 1x\n1", "takes a variable's name, not '1x'"),
        ("%%mesh --wrong\n1", "unrecognized arguments: --wrong"),
        ("%mesh fly", "%mesh has no verb 'fly'. %mesh help lists all verbs"),
        ("%mesh statos", "%mesh has no verb 'statos'. Did you mean %mesh status? %mesh help lists all verbs"),
        ("%mesh start x --gpus 0", "expected a number of at least 1, not '0'"),
        ("%mesh start x --gpus 2 --procs 2", "give one of --gpus, --procs, --dims"),
        ("%mesh start 1x", "a mesh's name is letters, digits"),
        (
            "%mesh start x hosts=2 gpus=4",
            "unrecognized arguments: hosts=2 gpus=4. Did you mean --dims hosts=2,gpus=4? Usage: ",
        ),
        ("%mesh start x --dims gpus", "expected DIM=SIZE,... as in hosts=2,gpus=4"),
        ("%mesh start x --idle-timeout soon", "a duration is a number with s, m, h or d"),
        ("%mesh push nothing_here", "no variable nothing_here in this notebook"),
        ("%mesh pull nothing_here", "name 'nothing_here' is not defined"),
    ],
)
def test_bad_input_gets_one_clear_error(show: Callable[[str], str], cell: str, says: str) -> None:
    text = show(cell)
    assert text.startswith("ERROR")
    assert says in text
    assert show("%%mesh --ranks 0\n'still here'") == "[0] 'still here'"


def test_a_rank_that_dies_is_told(notebook: Notebook) -> None:
    notebook.run("%mesh start doomed --procs 2")
    text = notebook.text(
        "%%mesh --name doomed\nimport os, signal\nif rank: os.kill(os.getpid(), signal.SIGKILL)\nrank"
    )
    assert "the process was killed by SIGKILL" in text
    assert "lost      rank 1" in notebook.text("%mesh status doomed")
    assert notebook.text("%%mesh --name doomed --ranks 0\n'alive'") == "[0] 'alive'"
    assert "has ended" in notebook.text("%mesh stop doomed")


def test_classes_of_cells_work_in_actors(notebook: Notebook, show: Callable[[str], str]) -> None:
    notebook.run(
        "from monarch_nb.actor import Actor, endpoint\n"
        "class Base(Actor):\n    def double(self): return 2 * self.x\n"
        "class Item:\n    def __init__(self, v): self.v = v\n"
        "class Mine(Base):\n"
        "    def __init__(self): self.x = 21\n"
        "    @endpoint\n    def get(self, item): return Item(self.double() + item.v)\n"
        "    @endpoint\n    def fail(self): return 1 // 0\n"
        "mine = mesh.spawn('mine', Mine)"
    )
    assert (
        show("[type(v) is Item and v.v for v in mine.get.call(Item(1)).get().values()]") == "[43, 43, 43, 43]"
    )
    text = show("mine.fail.call().get()")
    assert "def fail(self): return 1 // 0" in text or "return 1 // 0" in text
    assert "mine.fail.call().get()" in text
    assert show("(await mine.slice(gpus=0).get.call_one(Item(0))).v") == "42"


def test_the_extension_can_be_loaded_anew(show: Callable[[str], str]) -> None:
    assert "mesh 'test' runs" in show("%reload_ext monarch_nb")
    assert show("%%mesh\n'in use'") == "[0-3] 'in use'"
    assert show("%mesh stacks") == "ranks 0-3 (asked): idle"


def test_the_connection_file_is_private(show: Callable[[str], str]) -> None:
    path = os.path.join(os.environ["JUPYTER_RUNTIME_DIR"], "monarch_nb-test.json")
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_a_mesh_of_two_hosts(notebook: Notebook) -> None:
    assert "mesh 'pair' (hosts=2, gpus=2: ranks 0-3) is ready" in notebook.text(
        "%mesh start pair --dims hosts=2,gpus=2"
    )
    assert notebook.text("%%mesh --name pair\nprint('hi')\nrank") == "[0-3] hi\n[0] 0\n[1] 1\n[2] 2\n[3] 3"
    assert notebook.text("%%mesh --name pair --ranks hosts=1\nlocal_rank") == "[2] 0\n[3] 1"
    assert "has ended" in notebook.text("%mesh stop pair")
