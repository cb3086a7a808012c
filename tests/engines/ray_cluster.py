"""A real Ray of a test's own: two nodes on this machine. Run by an interpreter that has ray; it ends when its
standard input does.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    cluster.add_node(**node)
    print(cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()
