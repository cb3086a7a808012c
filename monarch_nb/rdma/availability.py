"""Reports whether RDMA is available here, by functions with Monarch's names."""

from __future__ import annotations

from monarch_nb.rdma.paths import chosen
from monarch_nb.rdma.paths.verbs.report import unavailable_reason

_BACKENDS = {"verbs": "ibverbs", "tcp": "tcp"}


def is_ibverbs_available() -> bool:
    """Return whether this process can use RDMA, which needs a device with an active port, and pyverbs. `%mesh
    doctor` shows the reason if it can't.
    """
    return not unavailable_reason()


def get_rdma_backend() -> str:
    """Return the backend of transfers between machines: `ibverbs`, `tcp`, or `none` if a path is forced that
    doesn't reach other machines.
    """
    forced = chosen()
    if forced is None:
        return "ibverbs" if is_ibverbs_available() else "tcp"
    if forced == "verbs" and not is_ibverbs_available():
        return "none"
    return _BACKENDS.get(forced, "none")
