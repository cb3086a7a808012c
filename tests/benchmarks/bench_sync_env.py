"""The environment that runs this, to a store on this machine: manifest, content, prefix, in CPU seconds,
beside cp and rsync.

    python tests/benchmarks/bench_sync_env.py [FOLDER]

FOLDER is on the file system that is measured, and is left empty. What goes over a network is measured by
`bench_rdma_tcp.py`.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from monarch_nb._sync.env.cache import HashCache
from monarch_nb._sync.env.interpreter import this_interpreter
from monarch_nb._sync.env.layers import find_layers
from monarch_nb._sync.env.local import fill_store
from monarch_nb._sync.env.place import place
from monarch_nb._sync.env.scan import scan
from monarch_nb._sync.env.store import Store


def timed(name: str, do: Callable[[], Any]) -> Any:
    """Do something; print its CPU time, that of its children included, and its wall time."""
    before, start = _cpu_s(), time.perf_counter()
    result = do()
    print(f"{name:44} {_cpu_s() - before:8.2f} CPU s {time.perf_counter() - start:8.2f} s", flush=True)
    return result


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main(folder: str) -> None:
    found, cache_file = find_layers(this_interpreter()), f"{folder}/content.sqlite"
    scanned = timed("manifest, cold", lambda: scan(found, HashCache(cache_file)))
    print(
        f"  {sum(len(p.entries) for p in scanned.parts.values()):,} files, {scanned.num_bytes / 1e9:.2f} GB"
    )
    timed("manifest, warm", lambda: scan(found, HashCache(cache_file)))
    timed("manifest, every file read", lambda: scan(found, HashCache(f"{folder}/none"), verify=True))
    store = Store(f"{folder}/store")
    timed("all content into an empty store, verified", lambda: fill_store(store, scanned))
    prefix = timed("prefix of hard links", lambda: place(store, scanned.manifest, lambda _: ""))
    timed("a second time, nothing is missing", lambda: fill_store(store, scanned))
    timed(
        "cp -al of that prefix",
        lambda: subprocess.run(["cp", "-al", prefix.root, f"{folder}/linked"], check=True),
    )
    timed(
        "cp -a of the environment",
        lambda: subprocess.run(["cp", "-a", sys.prefix, f"{folder}/copied"], check=True),
    )
    if shutil.which("rsync"):
        command = ["rsync", "-a", f"{sys.prefix}/", f"{folder}/synced/"]
        timed("rsync -a of the environment", lambda: subprocess.run(command, check=True))
        timed("rsync -a again", lambda: subprocess.run(command, check=True))
    store.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(
        dir=sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TMPDIR")
    ) as made:
        main(made)
