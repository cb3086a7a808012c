"""Modules are imported by whichever threads need them first, several at once: a package that imports its modules would be seen half made."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import monarch_nb.rdma
print([name for name in sys.modules if name.startswith("monarch_nb.rdma.")])
print(monarch_nb.rdma.RDMABuffer.__module__, "publish" in dir(monarch_nb.rdma), hasattr(monarch_nb.rdma, "nothing"))
"""


def test_the_data_planes_package_imports_none_of_its_modules() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == ["[]", "monarch_nb.rdma.buffer True False"]
