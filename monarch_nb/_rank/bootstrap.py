"""Turns a fresh interpreter into a rank: `python -m monarch_nb._rank.bootstrap`, started by a host process,
which passes the specification through the environment.
"""

from __future__ import annotations

import json
import os
import sys

from monarch_nb._host.starting import RANK_VARIABLE


def main() -> None:
    """Run as a rank until told to stop."""
    given = os.environ.pop(RANK_VARIABLE, "")
    if not given:
        sys.exit("monarch_nb._rank.bootstrap is started by a host process of a mesh, not by hand")
    place = json.loads(given)
    if place["pythonpath"] is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = place["pythonpath"]
    if os.getppid() != place["parent"]:
        sys.exit(
            "bootstrap_command: its program has started the rank as a child of its own. It has to "
            "become the rank, as numactl does: `exec python -m ...` in a shell"
        )
    try:
        encoded = os.pread(place["fd"], os.fstat(place["fd"]).st_size, 0)
    except OSError:
        sys.exit(
            f"bootstrap_command: its program has closed file descriptor {place['fd']}, which the rank needs"
        )
    os.close(place["fd"])
    sys.path[:] = place["path"]
    from monarch_nb._rank.main import read_whole_spec, run_rank

    run_rank(read_whole_spec(encoded), place["parent"])


if __name__ == "__main__":
    main()
