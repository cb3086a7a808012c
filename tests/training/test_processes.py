"""Processes that ranks start, over classes and functions of cells: multiprocessing with each start method,
DataLoader's workers, hydra.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from own_meshes import own_mesh

from monarch_nb.actor import Actor, endpoint
from monarch_nb.exceptions import ActorError
from monarch_nb.mesh import CellError, Mesh

DEFINE = """
import os, multiprocessing, torch
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

SCALE = 3

@dataclass
class Item:
    value: int

class Squares(torch.utils.data.Dataset):
    def __init__(self, items):
        self.items = items
    def __len__(self):
        return len(self.items)
    def __getitem__(self, i):
        return self.items[i].value ** 2 * SCALE

class Base:
    def double(self, x):
        return 2 * x

class Derived(Base):
    def double(self, x):
        return super().double(x) + SCALE

def work(x):
    return Item(Derived().double(x))
"""


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with own_mesh("processes", {"gpus": 2}) as found:
        found.run(DEFINE, quiet=True)
        yield found


class Loads(Actor):
    @endpoint
    def load(self, data: Any, method: str) -> list[list[int]]:
        import torch

        loader = torch.utils.data.DataLoader(
            data, batch_size=2, num_workers=1, multiprocessing_context=method
        )
        return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_dataloader_in_an_actor(mesh: Mesh, method: str) -> None:
    loads = mesh.spawn(f"loads-{method}", Loads)
    found = loads.load.call(list(range(4)), method).get(120)
    assert list(found.values()) == [[[0, 1], [2, 3]]] * 2


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_dataloader_know_a_class_of_a_cell(mesh: Mesh, method: str) -> None:
    mesh.run(
        f"loader = torch.utils.data.DataLoader(Squares([Item(i) for i in range(6)]), batch_size=2,\n"
        f"    num_workers=2, multiprocessing_context={method!r})\n"
        "found = [x for batch in loader for x in batch.tolist()]",
        quiet=True,
    )
    assert list(mesh.pull("found").values()) == [[0, 3, 12, 27, 48, 75]] * 2


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_and_processes(mesh: Mesh, method: str) -> None:
    mesh.run(
        f"context = multiprocessing.get_context({method!r})\n"
        "with context.Pool(1) as pool:\n"
        "    found = [each.value for each in pool.map(work, [1, 2])]\n"
        "with ProcessPoolExecutor(1, mp_context=context) as pool:\n"
        "    found.append(pool.submit(work, 5).result() == Item(13))\n"
        "queue = context.SimpleQueue()\n"
        "def put(queue, item): queue.put((item, os.getppid()))\n"
        "process = context.Process(target=put, args=(queue, Item(7)))\n"
        "process.start()\n"
        "item, parent = queue.get()\n"
        "process.join()\n"
        "found += [item == Item(7), type(item) is Item, process.exitcode]",
        quiet=True,
    )
    assert list(mesh.pull("found").values()) == [[5, 7, True, True, True, 0]] * 2


KEYLESS = """
class Keyless(torch.utils.data.Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, i):
        return {{}}["label"]
for _ in torch.utils.data.DataLoader(Keyless(), num_workers=1, multiprocessing_context={method!r}):
    pass
"""


class Reader(Actor):
    @endpoint
    def read(self) -> None:
        import torch

        data: Any = torch.utils.data.DataLoader(_Keyless(), num_workers=1, multiprocessing_context="fork")
        next(iter(data))


class _Keyless:
    def __len__(self) -> int:
        return 1

    def __getitem__(self, i: int) -> int:
        return {}["label"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_column_that_is_not_there_is_named_by_a_dataloaders_worker(mesh: Mesh, method: str) -> None:
    """torch gives the text of a KeyError a class of its own, which can't travel as it is."""
    with pytest.raises(CellError, match=r"(?s)KeyError: Caught KeyError in DataLoader.*KeyError: 'label'"):
        mesh.run(KEYLESS.format(method=method), quiet=True)
    mesh.run("pass", quiet=True)


def test_an_actor_says_it_too(mesh: Mesh) -> None:
    reader = mesh.spawn("reader", Reader)
    with pytest.raises(ActorError, match=r"(?s)KeyError: Caught KeyError in DataLoader.*KeyError: 'label'"):
        reader.read.call().get(60)


def test_what_a_worker_raises_is_shown(mesh: Mesh) -> None:
    with pytest.raises(Exception, match="ValueError: no such item"):
        mesh.run(
            "def fail(x): raise ValueError('no such item')\n"
            "with multiprocessing.get_context('spawn').Pool(1) as pool: pool.map(fail, [1])",
            quiet=True,
        )
    mesh.run("pass", quiet=True)


BROKEN = """
class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, i):
        raise ValueError(f"bad item {{i}}")
next(iter(torch.utils.data.DataLoader(Broken(), num_workers=1, multiprocessing_context={method!r})))
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_a_worker_raises_is_shown_with_the_line_of_its_cell(mesh: Mesh, method: str) -> None:
    with pytest.raises(CellError) as raised:
        mesh.run(BROKEN.format(method=method), quiet=True)
    (failure,) = raised.value.failures
    workers = failure.traceback.partition("Original Traceback")[2]
    assert "line 6, in __getitem__" in workers and "dynamic-code" not in workers, workers
    assert 'raise ValueError(f"bad item {i}")' in workers, workers


def test_a_script_spawns_as_a_script_does(mesh: Mesh, tmp_path: Path) -> None:
    script = tmp_path / "spawns.py"
    script.write_text(
        "import multiprocessing\n"
        "def double(x): return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print('found', pool.map(double, [1, 2]))\n"
    )
    assert not mesh.run_script(script).failures


HYDRA = """
import hydra
from omegaconf import DictConfig

@hydra.main(version_base=None, config_path={folder!r}, config_name="config")
def main(config: DictConfig) -> None:
    global found
    found = config.lr, config.steps
"""


def test_hydras_main_in_a_cell_and_in_a_script(
    mesh: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("hydra", reason="hydra isn't installed")
    kept = f"hydra:\n  run:\n    dir: {tmp_path}/out\n"  # hydra's logs: not where the tests were started
    (tmp_path / "config.yaml").write_text(f"lr: 0.1\nsteps: 3\n{kept}")
    source = HYDRA.format(folder=str(tmp_path))
    mesh.run(f"{source}\nmain()", quiet=True)
    mesh.run("main()", quiet=True)
    assert list(mesh.pull("found").values()) == [(0.1, 3)] * 2
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(f"{source}\nif __name__ == '__main__':\n    main()\n    print('trained', *found)\n")
    for lr in (0.5, 0.25):
        mesh.run_script(script, f"lr={lr}")
        shown = capsys.readouterr().out
        by_rank = {f"[{rank}] trained {lr} 3" for rank in range(2)}  # one rank may be later than a fold waits
        assert f"[0-1] trained {lr} 3" in shown or by_rank <= set(shown.splitlines()), shown
