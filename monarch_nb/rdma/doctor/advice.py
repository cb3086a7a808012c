"""Advises what to change on a rank, from its probe. Pure: a function for each thing that can be wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from msgspec import UNSET

from monarch_nb._shape import name_ranks
from monarch_nb._units import size_text
from monarch_nb._wire.mesh_address import APART
from monarch_nb.rdma.doctor.probe import PREFIX, SHARED_MEMORY, ProbeResult
from monarch_nb.rdma.paths import VARIABLE
from monarch_nb.rdma.paths.verbs.report import PortReport

Severity = Literal["change", "note", "ok"]
CHANGE: Final = "change"
NOTE: Final = "note"
OK: Final = "ok"
SEVERITIES: tuple[Severity, ...] = (CHANGE, NOTE, OK)

DEFAULT_SHM_BYTES = 64 << 20
"""The size that docker gives a container."""


@dataclass(frozen=True)
class Advice:
    """A finding about one subject.

    Attributes:
        severity: `change`: something is to be changed; `note`: worth to know; `ok`: it's fine.
        what: the finding.
        why: what follows from it.
        next: what to type; empty if there's nothing.
        ranks: where.
    """

    severity: Severity
    what: str
    why: str = ""
    next: str = ""
    ranks: tuple[int, ...] = ()

    def __str__(self) -> str:
        where = f"{name_ranks(self.ranks)}: " if self.ranks else ""
        return f"{where}{self.what}{f': {self.why}' if self.why else ''}"


def _devices(found: ProbeResult) -> Iterator[Advice]:
    rdma = found.rdma
    if rdma is None or not rdma.ports:
        return
    why_not = rdma.why_not
    if why_not:
        yield Advice(
            CHANGE, "there's an RDMA device, but it can't be used", why_not, _device_command(why_not)
        )
        return
    yield Advice(OK, f"RDMA by {', '.join(_names(p for p in rdma.ports if p.usable))}")
    idle = [p for p in rdma.ports if p.state != "ACTIVE"]
    if idle:
        yield Advice(
            NOTE,
            "some RDMA ports are not in use",
            ", ".join(f"{n} is {p.state}" for n, p in zip(_names(idle), idle, strict=True)),
        )


def _names(ports: Iterable[PortReport]) -> list[str]:
    return [f"{p.name}:{p.port}" for p in ports]


def _device_command(why_not: str) -> str:
    for word, command in (
        ("pyverbs", "apt install python3-pyverbs ibverbs-providers, or pip install 'monarch_nb[rdma]'"),
        (
            "uverbs",
            "docker run --device=/dev/infiniband --ulimit memlock=-1 ...; on the host: modprobe ib_uverbs",
        ),
        (f"{PREFIX}DEVICES", f"unset {PREFIX}DEVICES, or name other devices"),
        ("(GID)", "ip addr add ADDRESS/PREFIX dev DEVICE"),
        (
            "active",
            "ip link set DEVICE up (RoCE); look at the cable and the subnet manager (InfiniBand): ibstat",
        ),
    ):
        if word in why_not:
            return command
    return ""


def _memlock(found: ProbeResult) -> Iterator[Advice]:
    memlock, rdma, memory = found.memlock, found.rdma, found.memory
    if not memlock or not rdma or not rdma.ports or memlock.bytes is None or memlock.is_exempt:
        return
    if memory and memlock.bytes >= memory.total_bytes:
        return
    yield Advice(
        CHANGE,
        f"only {size_text(memlock.bytes)} may be locked",
        "a NIC registers memory by locking it, so larger transfers use another path",
        "ulimit -l unlimited; for good: '* - memlock unlimited' in /etc/security/limits.conf, "
        "LimitMEMLOCK=infinity (systemd), --ulimit memlock=-1 (docker)",
    )


def _gpu_memory(found: ProbeResult) -> Iterator[Advice]:
    gpus, rdma = found.gpus, found.rdma
    if not gpus or not gpus.num:
        return
    if rdma and rdma.ports and not rdma.why_not and gpus.no_nic:
        yield Advice(
            CHANGE,
            "NICs can't reach GPU memory",
            f"{gpus.no_nic}; it goes through host memory",
            "modprobe nvidia-peermem",
        )
    if not gpus.is_in_use:
        yield Advice(
            NOTE, "GPU memory was not measured", "the process doesn't use its GPU yet",
            "%%mesh torch.zeros(1, device='cuda'), and %mesh doctor again",
        )  # fmt: skip


def _shared_memory(found: ProbeResult) -> Iterator[Advice]:
    shared = found.shared_memory
    if shared is UNSET:
        return
    if shared is None:
        yield Advice(
            CHANGE,
            f"there's no {SHARED_MEMORY}",
            "torch's DataLoader needs it",
            f"mount -t tmpfs tmpfs {SHARED_MEMORY}",
        )
    elif shared.total_bytes <= DEFAULT_SHM_BYTES:
        yield Advice(
            CHANGE,
            f"{SHARED_MEMORY} has {size_text(shared.total_bytes)}, the default of docker",
            "workers of a DataLoader die when it's full",
            f"docker run --shm-size=16g ...; or mount -o remount,size=16g {SHARED_MEMORY}",
        )
    elif shared.free_bytes * 10 < shared.total_bytes:
        yield Advice(
            CHANGE,
            f"{SHARED_MEMORY} is nearly full",
            "files in it use memory until they are deleted",
            f"ls -lS {SHARED_MEMORY}, and rm what is left over",
        )


def _huge_pages(found: ProbeResult) -> Iterator[Advice]:
    if found.huge_pages == "never":
        yield Advice(
            CHANGE,
            "transparent huge pages are off",
            "copies between processes take up to three times as long",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )


_EFFECTS = {
    VARIABLE: "all transfers use this path and no other",
    APART: "ranks with different values treat each other as on other machines",
}


def _settings(found: ProbeResult) -> Iterator[Advice]:
    settings = found.settings or {}
    for name, effect in _EFFECTS.items():
        if settings.get(name):
            yield Advice(NOTE, f"{name}={settings[name]}", effect, f"unset {name}")


def _not_known(found: ProbeResult) -> Iterator[Advice]:
    for topic, why in found.failed.items():
        yield Advice(NOTE, f"{topic}: couldn't be looked at", why)


OF_A_RANK: tuple[Callable[[ProbeResult], Iterator[Advice]], ...] = (
    _devices, _memlock, _gpu_memory, _shared_memory, _huge_pages, _settings, _not_known,
)  # fmt: skip
