"""What a package or a process imports at once, and what it leaves to those who need it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import monarch_nb.rdma
print([name for name in sys.modules if name.startswith("monarch_nb.rdma.")])
rdma = monarch_nb.rdma
print(rdma.RDMABuffer.__module__, "publish" in dir(rdma), hasattr(rdma, "nothing"))
"""


def test_the_data_planes_package_imports_none_of_its_modules_but_where_to_find_broadcasts() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines() == [
        "['monarch_nb.rdma.broadcasting']",
        "monarch_nb.rdma.buffer True False",
    ]


def test_a_rank_has_the_actors_package_from_its_zygote() -> None:
    program = (
        "import sys, monarch_nb._rank.main; print('monarch_nb.actor.actor_mesh' in sys.modules, 'torch' "
        "in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["True", "False"]
