"""`%mesh start` and `%mesh attach` of a mesh that runs: one connection, and every flag is taken on or
refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from kernels import FileLatch, Notebook


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    opened = Notebook()
    opened.run("%load_ext monarch_nb")
    assert "is ready" in opened.text("%mesh start again --procs 2 --env COLOUR=blue")
    yield opened
    assert "has ended" in opened.text("%mesh stop -f")
    opened.close()


def test_what_an_actor_prints_comes_once(notebook: Notebook) -> None:
    notebook.run(
        "from monarch_nb.actor import Actor, endpoint\n"
        "class Talker(Actor):\n    @endpoint\n    def say(self):\n        print('said')\n        return 1\n"
        "first = mesh\ntalker = mesh.spawn('talker', Talker)"
    )
    for line in (
        "%mesh start again",
        "%mesh attach again",
        "import monarch_nb\nother = monarch_nb.attach('again')",
    ):
        notebook.run(line)
    assert notebook.text("list(talker.say.call().get().values())").splitlines() == ["[0-1] said", "[1, 1]"]
    assert notebook.text("mesh is first, len(mesh.status().clients)") == "(True, 1)"
    notebook.run("%mesh detach")
    assert "attached" in notebook.text("%mesh attach again")
    assert notebook.text("list(mesh.actors['talker'].say.call().get().values())").splitlines() == [
        "[0-1] said",
        "[1, 1]",
    ]


def test_a_notebook_that_finds_a_mesh_keeps_nothing_warm_beside_it(notebook: Notebook) -> None:
    """It goes on with that mesh; what nobody takes would stay as long as its kernel."""
    second = Notebook()
    try:
        assert "again" in second.text("%load_ext monarch_nb")
        kernel = psutil.Process(int(second.text("import os; os.getpid()")))
        assert "attached" in second.text("%mesh attach again")
        assert [p.name() for p in kernel.children(recursive=True) if p.name().startswith("mnb-")] == []
    finally:
        second.close()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--procs 3",
            (
                "runs already with procs=2, not procs=3. Give it that size: %mesh resize --name again "
                "procs=3; or end it first: "
            ),
        ),
        (
            "--gpus 2",
            (
                "runs already with procs=2, not gpus=2. For that, end it first: %mesh stop again; or "
                "choose another name"
            ),
        ),
        ("--hosts 2", "runs already with procs=2, not hosts=2. For that, end it first"),
        ("--env COLOUR=red", "was started with COLOUR=blue, not COLOUR=red. For new values end it first"),
        ("--env SIZE=1", "was started with no SIZE, not SIZE=1"),
        ("--hosts 2 --job process", "runs already with procs=2, not hosts=2. For that, end it first"),
        ("--spares 1", "--spares (num_spares=) is fixed when a mesh starts"),
        ("--spawn", "--spawn (method='spawn') is fixed when a mesh starts"),
    ],
)
def test_what_differs_is_refused(notebook: Notebook, flags: str, message: str) -> None:
    text = notebook.text(f"%mesh start again {flags}")
    assert text.startswith("ERROR MeshUsageError: start: mesh 'again' runs already")
    assert message in text


@pytest.mark.parametrize("name", ["again", "new"])
def test_a_time_out_of_no_group_is_refused(notebook: Notebook, name: str) -> None:
    text = notebook.text(f"%mesh start {name} --group-timeout 5m")
    assert text == (
        "ERROR MeshUsageError: start: --group-timeout says how long a collective of "
        "--init-process-group may take; give that, too"
    )


def test_what_has_nothing_to_do_is_said(notebook: Notebook) -> None:
    assert "which was running; --force had nothing to do: no rank was started" in notebook.text(
        "%mesh start again --procs 2 --force"
    )


def test_a_mesh_of_hosts_is_not_local(notebook: Notebook) -> None:
    assert "is ready" in notebook.text("%mesh start far --hosts 1 --procs 1")
    text = notebook.text("%mesh start far --job local")
    notebook.run("%mesh stop far -f")
    assert (
        "mesh 'far' runs already with hosts=1, not with --job local. For that, end it first: %mesh stop far"
        in text
    )
    assert "attached" in notebook.text("%mesh use again\n%mesh attach again")


def test_what_can_be_changed_is_taken_on(notebook: Notebook, tmp_path: Path) -> None:
    assert notebook.text("%mesh start again --procs 2 --env COLOUR=blue").splitlines() == [
        "attached to mesh 'again' (procs=2: ranks 0-1), which was running"
    ]
    text = notebook.text("%mesh start again --idle-timeout 2h --on-failure heal")
    assert "which was running; on failure: heal; it ends after 2 h without" in text
    assert "2 h" in notebook.text("%mesh lease")

    gate = FileLatch(tmp_path / "go")
    notebook.run(f"%%mesh --async --ranks 1\n{gate.source}")
    assert "--init-process-group was not looked at, for rank 1 is busy: run this again" in notebook.text(
        "%mesh start again --init-process-group gloo"
    )
    gate.open()
    notebook.run("%mesh result")
    assert "torch.distributed is ready (gloo)" in notebook.text("%mesh start again --init-process-group gloo")
    source = (
        "%%mesh\nimport torch, torch.distributed as dist\nt = torch.ones(1)\ndist.all_reduce(t)\nt.item()"
    )
    assert notebook.text(source).splitlines()[0] == "[0-1] 2.0"
    assert "torch.distributed is ready (gloo), as it was" in notebook.text(
        "%mesh start again --init-process-group"
    )
    text = notebook.text("%mesh start again --init-process-group --group-timeout 5m")
    assert (
        "(gloo), as it was, and so is its time-out: --group-timeout is fixed when the group is made" in text
    )
    text = notebook.text("%mesh start again --init-process-group nccl")
    assert "has process groups already (ranks 0-1: gloo), and can't get another one" in text


def test_whose_end_it_has_is_taken_on_or_refused(notebook: Notebook) -> None:
    assert notebook.text("%mesh start again --with-kernel").endswith(
        "which was running; it ends with this kernel"
    )
    assert "ends with its kernel (pid " in notebook.text("%mesh status")
    other = Notebook()
    try:
        other.run("%load_ext monarch_nb")
        text = other.text("%mesh start again --with-kernel")
        assert text.startswith(
            "ERROR MeshUsageError: start: mesh 'again' runs already, and ends with another program (pid "
        )
        assert "Have it end with none: %mesh start again --keep" in text
        assert other.text("%mesh start again --keep").endswith("which was running; it ends with no kernel")
    finally:
        other.close()
    assert "ends with its kernel" not in notebook.text("%mesh status")
