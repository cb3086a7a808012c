"""Many ranks at once: what each of them needs is made once, before they are forked."""

from __future__ import annotations

from own_meshes import own_mesh

from monarch_nb._rank.zygote import MANY_RANKS


def is_ready_made() -> bool:
    import sys

    interactive = sys.modules.get("monarch_nb._rank.interactive")
    return interactive is not None and interactive._prepared is not None


def test_ranks_find_their_shell_made_and_cells_run_in_it() -> None:
    with own_mesh("many", {"gpus": MANY_RANKS}, force=True) as mesh:
        assert all(mesh.execute(is_ready_made).get(60).values())
        mesh.run("x = rank + 1", quiet=True)
        assert not any(mesh.execute(is_ready_made).get(60).values())
        assert list(mesh.pull("x").values()) == list(range(1, MANY_RANKS + 1))
