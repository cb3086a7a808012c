"""Many ranks at once: what each of them needs is made once, before they are forked. What cells need, a rank
makes before the first one if its mesh has a name, and when it gets one otherwise.
"""

from __future__ import annotations

from own_meshes import own_mesh

from monarch_nb._rank.zygote import MANY_RANKS
from monarch_nb.actor import this_host


def has_unused_shell() -> bool:
    """Whether the shell that the zygote has made is here, and no cell could use it yet."""
    import sys

    interactive = sys.modules.get("monarch_nb._rank.interactive")
    return interactive is not None and interactive._prepared is not None


def has_shell_for_cells() -> bool:
    """Whether this rank has what IPython puts into each process that runs cells."""
    import builtins

    return hasattr(builtins, "get_ipython")


def test_ranks_find_their_shell_made() -> None:
    procs = this_host().spawn_procs({"gpus": MANY_RANKS})
    try:
        assert all(procs.execute(has_unused_shell).get(60).values())
        assert not any(procs.execute(has_shell_for_cells).get(60).values())
    finally:
        procs.stop(grace_s=0.0).get(60)


def test_ranks_of_a_named_mesh_are_ready_for_cells_before_the_first_one() -> None:
    with own_mesh("many", {"gpus": MANY_RANKS}, force=True) as mesh:
        assert not any(mesh.execute(has_unused_shell).get(60).values())
        assert all(mesh.execute(has_shell_for_cells).get(60).values())
        mesh.run("x = rank + 1", quiet=True)
        assert list(mesh.pull("x").values()) == list(range(1, MANY_RANKS + 1))


def test_healed_and_added_ranks_are_ready_too() -> None:
    with own_mesh("later", {"gpus": 2}) as mesh:
        mesh.submit("import os\nif rank: os._exit(3)").wait(60)
        assert not mesh.heal().problems
        mesh.resize(gpus=3)
        assert list(mesh.execute(has_shell_for_cells).get(60).values()) == [True] * 3
