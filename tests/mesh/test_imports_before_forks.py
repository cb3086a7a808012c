"""What a spawn asks the warm interpreter to import first: once for all of its processes."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from own_meshes import own_this_host
from processes import wait_for_exit

from monarch_nb.actor import ProcMesh, this_host
from monarch_nb.distributed import IMPORTS, Mesh

MODULE = "xmlrpc.server"
T = 60


def modules(procs: ProcMesh, *names: str) -> list[bool]:
    """Say of each process whether it has all of these modules."""
    return list(procs.execute(lambda: all(name in sys.modules for name in names)).get(T).values())


def test_they_are_there_from_the_start_also_in_a_process_that_replaces_another() -> None:
    with own_this_host():
        bare = this_host().spawn_procs({"gpus": 2})
        assert modules(bare, MODULE) == [False, False]
        procs = this_host().spawn_procs({"gpus": 2}, imports=["no_such_module", MODULE])
        assert modules(procs, MODULE) == [True, True]
        pid = list(procs.execute(os.getpid).get(T).values())[1]
        os.kill(pid, signal.SIGKILL)
        assert wait_for_exit(pid)
        procs.heal()
        assert modules(procs, MODULE) == [True, True]


@pytest.mark.parametrize("wrong", ["json", ["json; quit()"], ["json", 3], [""]])
def test_what_is_no_name_of_a_module_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"imports (are|is a list of) names of modules"):
        this_host().spawn_procs({"gpus": 1}, imports=wrong)  # type: ignore[arg-type]


def test_ranks_of_tensors_share_what_executes_their_commands() -> None:
    with own_this_host(), Mesh(shape=(2,), mesh_dim_names=("data_parallel",)) as mesh:
        assert modules(mesh.procs, *IMPORTS) == [True, True]
