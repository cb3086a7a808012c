"""Types of requests to the main threads of ranks to create a torch.distributed process group again."""

from __future__ import annotations

from monarch_nb._protocol.base import Record


class StoreAddress(Record, frozen=True):
    """The address of a store that a rank has started."""

    address: str
    port: int


class RemakeGroup(Record, frozen=True):
    """Make the default process group anew.

    Attributes:
        store: the store where all ranks meet.
        backend: backend of the group: "gloo", "nccl".
        timeout_s: timeout of its operations, once it is made.
        places: each rank's number in the group, by its number in the mesh.
    """

    store: StoreAddress
    world_size: int
    backend: str
    timeout_s: float
    places: dict[int, int]
