"""Reports whether RDMA is available here, by functions with Monarch's names."""

from __future__ import annotations

from monarch_nb.rdma.paths import chosen
from monarch_nb.rdma.paths.verbs.report import unavailable_reason

_BACKENDS = {"verbs": "ibverbs", "tcp": "tcp"}


def is_ibverbs_available() -> bool:
    """Say whether this process can use RDMA: a device with an active port, and pyverbs. `%mesh doctor`
    tells why not.
    """
    return not unavailable_reason()


def get_rdma_backend() -> str:
    """Return the backend of transfers between machines: `ibverbs`, `tcp`, or `none` if the path that is
    forced doesn't lead to others.
    """
    forced = chosen()
    if forced is None:
        return "ibverbs" if is_ibverbs_available() else "tcp"
    if forced == "verbs" and not is_ibverbs_available():
        return "none"
    return _BACKENDS.get(forced, "none")
