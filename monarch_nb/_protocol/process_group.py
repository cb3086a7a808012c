"""Types by which the main threads of ranks are asked to make a torch.distributed process group anew."""

from __future__ import annotations

from monarch_nb._protocol.base import Record


class StoreAddress(Record, frozen=True):
    """The address of a store that a rank has started."""

    address: str
    port: int


class RemakeGroup(Record, frozen=True):
    """Make the default process group anew.

    Attributes:
        store: where all meet.
        backend: of the group: "gloo", "nccl".
        timeout_s: of its operations, once it's made.
        places: each rank's number in the group, by its number in the mesh.
    """

    store: StoreAddress
    world_size: int
    backend: str
    timeout_s: float
    places: dict[int, int]
