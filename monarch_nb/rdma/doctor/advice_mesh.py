"""Advises what to change in a mesh, from all ranks' probes and the measurements between them. Pure: a
function for each thing that can be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from monarch_nb._wire.mesh_address import APART
from monarch_nb.rdma.doctor.advice import CHANGE, NOTE, OF_A_RANK, OK, SEVERITIES, Advice
from monarch_nb.rdma.doctor.measuring import ANY, Measurement
from monarch_nb.rdma.doctor.probe import PREFIX, Place, ProbeResult, Tracing

GOOD_SHARE = 0.8
"""Share of a NIC's speed below which a measurement by tcp is reported."""

ProbeResults = Mapping[int, ProbeResult]
Measurements = Sequence[Measurement]


def advise(probes: ProbeResults, measurements: Measurements) -> list[Advice]:
    """Return the advice about a mesh: first settings to change, then notes, then settings that are fine."""
    found = list(_of_ranks(probes))
    for check in _OF_ALL:
        found += check(probes, measurements)
    return sorted(found, key=lambda advice: SEVERITIES.index(advice.severity))


def _of_ranks(probes: ProbeResults) -> Iterator[Advice]:
    for check in OF_A_RANK:
        ranks: dict[Advice, list[int]] = {}
        for rank, found in probes.items():
            for advice in check(found):
                ranks.setdefault(advice, []).append(rank)
        yield from (replace(advice, ranks=tuple(where)) for advice, where in ranks.items())


def _reading(probes: ProbeResults, measurements: Measurements) -> Iterator[Advice]:
    """Yield advice on whether processes of one machine can read each other's memory."""
    tried = [
        m
        for m in measurements
        if m.path == "shm" and m.source_device == "cpu" and _share(probes, m, "machine")
    ]
    failed = [m for m in tried if m.why_not]
    if tried and not failed:
        yield Advice(OK, "processes of one machine read each other's memory")
    for why in dict.fromkeys(m.why_not for m in failed):
        ranks = tuple(sorted({r for m in failed if m.why_not == why for r in (m.source, m.reader)}))
        yield Advice(
            CHANGE,
            "ranks of one machine can't read each other's memory",
            why,
            _tracing_command(probes[ranks[0]]),
            ranks,
        )
    strict = tuple(r for r, found in probes.items() if not tried and _is_strict(found.tracing))
    if strict:
        tracing = probes[strict[0]].tracing
        scope = tracing and tracing.scope
        why = "processes of one machine can't read each other's memory"
        yield Advice(
            CHANGE, f"kernel.yama.ptrace_scope is {scope}", why, _tracing_command(probes[strict[0]]), strict
        )


def _is_strict(tracing: Tracing | None) -> bool:
    """Return whether Yama forbids access even where `prctl(PR_SET_PTRACER)` was called."""
    return (
        tracing is not None
        and tracing.scope is not None
        and (tracing.scope > 2 or (tracing.scope == 2 and not tracing.is_exempt))
    )


def _tracing_command(found: ProbeResult) -> str:
    tracing = found.tracing
    if tracing and tracing.scope == 3:
        return "kernel.yama.ptrace_scope = 1 in /etc/sysctl.d, and a reboot: 3 can't be taken back"
    if _is_strict(tracing):
        return "sysctl kernel.yama.ptrace_scope=1"
    return "docker run --cap-add SYS_PTRACE ... (Kubernetes: securityContext.capabilities.add: [SYS_PTRACE])"


def _share(probes: ProbeResults, measured: Measurement, key: Literal["machine", "boot"]) -> bool:
    ends = [_places(probes).get(rank) for rank in (measured.source, measured.reader)]
    return all(ends) and len({getattr(place, key) for place in ends}) == 1


def _places(probes: ProbeResults) -> dict[int, Place]:
    return {rank: found.place for rank, found in probes.items() if found.place is not None}


def _by_machine(probes: ProbeResults) -> dict[str, list[int]]:
    """Return the ranks by machine: those of one machine share a kernel."""
    found: dict[str, list[int]] = {}
    for rank, place in _places(probes).items():
        found.setdefault(place.boot, []).append(rank)
    return found


def _apart(probes: ProbeResults, _: Measurements) -> Iterator[Advice]:
    """Yield advice on ranks of one machine that are isolated from each other, by containers or by different
    users.
    """
    for ranks in _by_machine(probes).values():
        places = [_places(probes)[r] for r in ranks]
        wanted = any(APART in (probes[r].settings or {}) for r in ranks)
        if len({p.machine for p in places}) > 1 and not wanted:
            yield Advice(
                CHANGE,
                "ranks of one machine can't see each other",
                ("they run as different users or in separate containers: bytes go over the network"),
                "run them as one user in one container, or with docker run --pid=host --ipc=host ...",
                tuple(ranks),
            )
        elif len({p.ipc for p in places}) > 1 and any(_has_gpus(probes[r]) for r in ranks):
            why = "CUDA can't open memory of another IPC namespace"
            yield Advice(
                CHANGE,
                "ranks of one machine are in several IPC namespaces",
                why,
                "docker run --ipc=host ...",
                tuple(ranks),
            )


def _has_gpus(found: ProbeResult) -> bool:
    return found.gpus is not None and found.gpus.num > 0


def _between_machines(probes: ProbeResults, _: Measurements) -> Iterator[Advice]:
    by_machine = _by_machine(probes)
    if len(by_machine) < 2:
        return
    bare = tuple(r for r, found in probes.items() if found.rdma is None or not found.rdma.ports)
    if bare:
        yield Advice(NOTE, "there's no RDMA device", "bytes to and from other machines go by tcp", ranks=bare)
    lonely = tuple(r for r, found in probes.items() if found.network == ())
    if lonely:
        yield Advice(
            CHANGE,
            "there's no network interface with an address",
            "other machines can't connect",
            "ip addr; ip link set DEVICE up",
            lonely,
        )


def _tcp_speed(probes: ProbeResults, measurements: Measurements) -> Iterator[Advice]:
    """Yield advice if tcp between machines is slower than their network devices; it names the slowest
    pair.
    """
    slow: list[tuple[float, Measurement, float, int]] = []
    for m in measurements:
        if m.path != "tcp" or m.gb_per_s is None or m.source_device != "cpu" or _share(probes, m, "boot"):
            continue
        ends = [_fastest(probes.get(rank)) for rank in (m.source, m.reader)]
        limit = min(megabits for megabits, _ in ends) / 1000
        if limit and m.gb_per_s * 8 < GOOD_SHARE * limit:
            slow.append((m.gb_per_s * 8 / limit, m, limit, min(mtu for _, mtu in ends)))
    if not slow:
        return
    _, m, limit, mtu = min(slow, key=lambda one: one[0])
    assert m.gb_per_s is not None
    frames = "; larger frames, where switches take them: ip link set DEVICE mtu 9000" if mtu <= 1500 else ""
    yield Advice(
        NOTE,
        f"tcp from rank {m.source} to rank {m.reader} has {m.gb_per_s * 8:.3g} of {limit:g} Gbit/s",
        "more streams may help",
        f"%mesh start --env {PREFIX}STREAMS=8; another interface: {PREFIX}INTERFACE=NAME{frames}",
        tuple(sorted({r for _, one, _, _ in slow for r in (one.source, one.reader)})),
    )


def _fastest(found: ProbeResult | None) -> tuple[int, int]:
    """Return the speed (Mbit/s) and the MTU (bytes) of the fastest interface; zeros if unknown."""
    interfaces = (found and found.network) or ()
    return max(((one.megabits_per_s, one.mtu) for one in interfaces), default=(0, 0))


def _broken(probes: ProbeResults, measurements: Measurements) -> Iterator[Advice]:
    """Yield advice on paths that failed although all known settings of the ranks allow them."""
    ranks: dict[tuple[str, str], set[int]] = {}
    for m in measurements:
        can_rdma = all(_can_rdma(probes.get(rank)) for rank in (m.source, m.reader))
        if m.why_not and (m.path in ("tcp", ANY) or (m.path == "verbs" and can_rdma)):
            ranks.setdefault((m.path, m.why_not), set()).update((m.source, m.reader))
    for (path, why), where in ranks.items():
        what = (
            "not all of them could be measured" if path == ANY else f"{path} doesn't work between all of them"
        )
        yield Advice(CHANGE, what, why, _BROKEN.get(path, ""), tuple(sorted(where)))


def _can_rdma(found: ProbeResult | None) -> bool:
    return found is not None and found.rdma is not None and not found.rdma.why_not


_BROKEN = {
    "tcp": (
        f"%mesh start --env {PREFIX}INTERFACE=NAME; let firewalls pass the ports of "
        "/proc/sys/net/ipv4/ip_local_port_range"
    ),
    "verbs": (
        "test without monarch_nb: ib_read_bw -d DEVICE on one host, ib_read_bw -d DEVICE HOST on the other "
        "(apt install perftest)"
    ),
}

_OF_ALL: tuple[Callable[[ProbeResults, Measurements], Iterator[Advice]], ...] = (
    _reading, _apart, _between_machines, _tcp_speed, _broken,
)  # fmt: skip
