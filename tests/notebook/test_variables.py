"""Variables across ranks, what Tab offers, help on remote names, hot swap of actor classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kernels import RawKernel, shown


class Kernel(RawKernel):
    """A raw kernel that can also be asked for completions and help."""

    def complete(self, code: str) -> list[str]:
        reply = self._ask(self.client.complete(code, len(code)))
        return [code[reply["cursor_start"] : reply["cursor_start"]] + m for m in reply["matches"]]

    def inspect(self, code: str) -> str:
        """Return what Shift+Tab shows; nothing if the kernel says that nothing was found."""
        reply = self._ask(self.client.inspect(code, len(code)))
        return str(reply["data"].get("text/plain", "")) if reply["found"] else ""

    def _ask(self, request: str) -> dict[str, Any]:
        while True:
            message = self.client.get_shell_msg(timeout=60)
            if message["parent_header"].get("msg_id") == request:
                return dict(message["content"])


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    opened = Kernel()
    opened.run("%load_ext monarch_nb")
    assert "is ready" in opened.show("%mesh start varied --dims gpus=3 --init-process-group gloo")
    opened.run("%%mesh\nimport torch, numpy as np\nimport torch.distributed as dist")
    yield opened
    assert "has ended" in opened.show("%mesh stop varied")
    opened.close()


@pytest.fixture
def show(kernel: Kernel) -> Callable[[str], str]:
    return kernel.show


def test_the_helpers_are_importable() -> None:
    assert shown([]) == ""


def test_vars_show_what_each_rank_holds(show: Callable[[str], str]) -> None:
    show(
        "%%mesh\nweights = torch.full((2, 3), 2.0)\nlr = 0.1 * (rank + 1)\nname = 'run'\n_hidden = "
        "1\nimport os"
    )
    lines = show("%mesh vars").splitlines()
    assert lines[0].split() == ["ranks", "name", "type", "shape", "dtype", "device", "norm", "value"]
    assert ["[0-2]", "weights", "Tensor", "2x3", "float32", "cpu", "4.89898"] in [
        line.split() for line in lines
    ]
    assert [line.split()[:4] for line in lines if " lr " in line] == [
        ["!", f"[{r}]", "lr", "float"] for r in range(3)
    ]  # fmt: skip
    text = "\n".join(lines)
    assert "[0-2]  name" in text
    assert "_hidden" not in text
    assert " os " not in text
    assert show("%mesh vars lr --ranks 1").splitlines()[1].split()[:3] == ["[1]", "lr", "float"]
    assert "no rank has a variable nothing" in show("%mesh vars nothing")


def test_diff_says_where_and_how_much(show: Callable[[str], str]) -> None:
    show("%%mesh\nt = torch.zeros(2, 3)\nif rank == 2: t[1, 2] = 0.75; t[0, 1] = -0.25\nsame = torch.ones(4)")
    assert show("%mesh diff t").splitlines() == [
        "t differs",
        "  [0-1] agree",
        "    [2] first differs at (0, 1): -0.25 instead of 0; largest difference 0.75, in 2 of 6 elements",
    ]
    assert show("%mesh diff same") == "same is equal on all ranks"
    show(
        "%%mesh\ntorch.manual_seed(0)\nmodel = torch.nn.Linear(4, 2)\nif rank == 1:\n    with "
        "torch.no_grad(): model.bias[0] += 1"
    )
    text = show("%mesh diff model")
    assert text.splitlines()[0] == "model differs in 1 of 2 parts"
    assert "['bias']: [0,2] agree" in text
    assert "first differs at 0:" in text
    assert "has shape (3,) instead of (2,)" in show(
        "%%mesh\nu = torch.zeros(3 if rank == 2 else 2)\n"
    ) + show("%mesh diff u")
    assert "[2] 'c' instead of 'a'" in show("%%mesh\ns = 'c' if rank == 2 else 'a'") + show("%mesh diff s")
    assert "name 'nowhere' is not defined" in show("%mesh diff nowhere")


def test_shards_of_a_dtensor_are_no_disagreement(show: Callable[[str], str]) -> None:
    show(
        "%%mesh\nfrom torch.distributed.device_mesh import init_device_mesh\nfrom "
        "torch.distributed.tensor import Shard, distribute_tensor\ngrid = init_device_mesh('cpu', "
        "(3,))\nsharded = distribute_tensor(torch.arange(6.0), grid, [Shard(0)])"
    )
    assert show("%mesh diff sharded") == "sharded is equal on all ranks"
    line = next(x for x in show("%mesh vars sharded").splitlines() if "DTensor" in x)
    assert line.split()[:4] == ["[0-2]", "sharded", "DTensor", "6"]
    assert "(0)" in line


def test_scatter_and_push_to_some(show: Callable[[str], str]) -> None:
    show(
        "import torch\ndata = torch.arange(6).reshape(3, 2)\n%mesh scatter data\nflag = 'set'\n%mesh "
        "push flag --ranks 1"
    )
    assert show("%%mesh\ndata.tolist()").splitlines() == ["[0] [[0, 1]]", "[1] [[2, 3]]", "[2] [[4, 5]]"]
    assert show("%%mesh\n'flag' in globals()").splitlines() == ["[0,2] False", "[1] True"]
    assert "int, which can't be split along dimension 0" in show("number = 3\n%mesh scatter number")
    (line,) = re.findall(r"^#.* data$", show("%mesh history"), re.MULTILINE)
    assert "[0-2]" in line
    assert line.endswith("%mesh scatter data")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("%mesh sta", ["start", "stacks", "status"]),
        ("%mesh start --ga", []),
        ("%mesh start --gp", ["--gpus"]),
        ("%mesh start --init-process-group ", ["nccl", "gloo"]),
        ("%mesh start --on-failure=he", ["heal"]),
        ("%mesh start --dims hosts=2,", ["gpus="]),
        ("%mesh start --idle-timeout ", ["8h"]),
        ("%mesh start --gpus ", ["1", "8"]),
        ("%mesh on-failure ", ["heal", "shrink", "stop"]),
        ("%mesh on-failure heal --max-restarts ", ["5"]),
        ("%mesh resize ", ["gpus="]),
        ("%mesh resize gpus=", ["1", "2", "4", "6"]),
        ("%mesh set ", ["breakpoints", "why-after"]),
        ("%mesh set breakpoints ", ["skip", "stop"]),
        ("%mesh set why-after ", ["off", "5m"]),
        ("%mesh lease ", ["30m", "24h"]),
        ("%mesh logs --ranks gpus=", ["0", "1", "2"]),
        ("%mesh logs --grep ", []),
        ("%mesh reload ", ["Reloaded"]),
        ("%mesh attach va", ["varied"]),
        ("%mesh auto o", ["on", "off"]),
        ("%%mesh --gr", ["--group"]),
        ("%%mesh --group ra", ["rank"]),
        ("%%mesh --name v", ["varied"]),
        ("%%mesh --ranks g", ["gpus="]),
        ("%%mesh --ranks gpus=", ["0", "1", "2"]),
        ("%mesh vars unus", ["unusual_name"]),
        ("%%mesh\nunus", ["unusual_name"]),
        ("%%mesh\nx = 1\nprint(unusual_name.sta", ["unusual_name.start", "unusual_name.stabilized"]),
    ],
)
def test_completion(kernel: Kernel, code: str, expected: list[str]) -> None:
    kernel.run(
        "%%mesh\nclass Thing:\n    def start(self): raise SystemError\n    @property\n    def "
        "stabilized(self): raise SystemError\nunusual_name = Thing()"
    )
    kernel.run("class Reloaded: pass")
    matches = kernel.complete(code)
    if expected:
        assert set(expected) <= set(matches)
        assert len(matches) < 10
    else:
        assert matches == []


def test_completion_leaves_the_namespace_alone_and_gives_up_on_busy_ranks(kernel: Kernel) -> None:
    kernel.complete("%%mesh\nunus")
    assert kernel.show("'unusual_name' in globals()") == "False"
    kernel.run("%%mesh --async\nimport time\nwhile 'released' not in dir(time): time.sleep(0.01)")
    assert kernel.complete("%%mesh\nunus") == []
    kernel.run("%mesh interrupt")
    assert "interrupted" in kernel.show("%mesh result")


def test_help_on_remote_names(kernel: Kernel) -> None:
    kernel.run("%%mesh\ndef remote_only(a, b=2):\n    '''Adds up.'''\n    return a + b")
    text = kernel.show("%%mesh --ranks 0\nremote_only?")
    assert "Signature: remote_only(a, b=2)" in text
    assert "Adds up." in text
    text = kernel.inspect("%%mesh\nremote_only")
    assert "remote_only(a, b=2)" in text
    assert "Adds up." in text
    assert "rerun      " in kernel.show("print(get_ipython().find_magic('mesh').__doc__)")
    assert "--idle-timeout" in kernel.show("%mesh start --help")
    assert "--idle-timeout" in kernel.show("%mesh start?")


def test_help_tells_what_ranks_have(kernel: Kernel) -> None:
    """Shift+Tab in Lab: type, shape and dtype, where ranks differ, what is only there on some; the
    kernel's own names come second.
    """
    kernel.run("shared = 'in the kernel'\ndef local_only(): 'Here.'")
    kernel.run(
        "%%mesh\nimport torch\nshared = torch.ones(2 + (rank == 2), 3)\nloss = torch.tensor(0.5 * "
        "rank)\nbig = torch.zeros(5_000_000)\nif rank == 0: alone = [1]\nclass Loud:\n    def "
        "__repr__(self): raise SystemError\nloud = Loud()"
    )
    text = kernel.inspect("%%mesh\nshared")
    assert text.splitlines()[:4] == [
        "Type:      Tensor",
        "Shape:     [0-1] 2x3",
        "           [2] 3x3",
        "Dtype:     float32",
    ]
    assert "Ranks:     differ: 0-1 | 2" in text
    assert "in the kernel" in kernel.inspect("shared")
    assert "[1] tensor(0.5000)" in kernel.inspect("%%mesh\nloss")
    assert "Shape:     5000000" in kernel.inspect("%%mesh\nbig")
    assert "Undefined: ranks 1-2" in kernel.inspect("%%mesh\nalone")
    assert "repr raised SystemError" in kernel.inspect("%%mesh\nloud")
    assert "Here." in kernel.inspect("%%mesh\nlocal_only")
    assert "only on the ranks" not in kernel.inspect("%%mesh\nnowhere")
    assert kernel.inspect("%%mesh\nnowhere") == ""
    kernel.run("%%mesh --async --ranks 0\nimport time\nwhile 'let_go' not in dir(time): time.sleep(0.01)")
    kernel.run("while mesh.status().ranks[0].state != 'busy': pass")
    assert "Busy:      rank 0; not asked" in kernel.inspect("%%mesh\nloss")
    kernel.run("%mesh interrupt")
    assert "interrupted" in kernel.show("%mesh result")


def test_hot_swap_keeps_the_state(kernel: Kernel, show: Callable[[str], str]) -> None:
    define = (
        "from monarch_nb.actor import Actor, endpoint\n"
        "class Trainer(Actor):\n"
        "    def __init__(self): self.step = 0\n"
        "    @endpoint\n    def advance(self):\n        self.step += {by}\n        return self.step\n"
    )
    kernel.run(define.format(by=1) + "trainer = mesh.spawn('trainer', Trainer)")
    assert show("trainer.advance.call().get()") == "ValueMesh(gpus=3): [0-2] 1"
    text = show(define.format(by=100) + "    @endpoint\n    def extra(self): return 'new'\n")
    assert "trainer on mesh 'varied' still has the old Trainer: %mesh reload Trainer" in text
    assert show("trainer.advance.call().get()") == "ValueMesh(gpus=3): [0-2] 2"
    assert show("%mesh reload Trainer") == "3 actors on ranks 0-2 have the new Trainer; state kept"
    assert show("trainer.advance.call().get()") == "ValueMesh(gpus=3): [0-2] 102"
    assert show("trainer.extra.call().get()") == "ValueMesh(gpus=3): [0-2] 'new'"
    assert "Nothing is no actor class of this notebook" in show("%mesh reload Nothing")
    assert "no actor of a class Idle lives on mesh 'varied'" in show("class Idle(Actor): pass\n") + show(
        "%mesh reload Idle"
    )
