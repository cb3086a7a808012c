"""Checks of the verbs path, run inside the virtual machine: `python inside.py RESULTS [NAMES]`. Each
leaves a line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy
from pair import Pair

from monarch_nb.exceptions import BufferGone, PathFailed, RDMAError, TransferTimeout
from monarch_nb.rdma import RDMAAction, RDMABuffer, empty
from monarch_nb.rdma.memory import memory_of
from monarch_nb.rdma.path import READ, WRITE, Job

MIB = 1 << 20
SEED = 20240229
LIMIT_S = 60.0
SEARCH_PATH = list(sys.path)
CHECKS: dict[str, Callable[[Pair], Any]] = {}


def check(function: Callable[[Pair], Any]) -> Callable[[Pair], Any]:
    CHECKS[function.__name__] = function
    return function


def fails(
    kind: type[BaseException] | tuple[type[BaseException], ...], function: Callable[[], Any], *words: str
) -> BaseException:
    """Return the error that a function must raise, in whose text these words must be."""
    try:
        found = function()
    except kind as error:
        if not all(w in str(error) for w in words):
            raise AssertionError(f"{words} are not in: {error}") from error
        return error
    raise AssertionError(f"no error, but {found!r}")


def bytes_of(num: int, seed: int = SEED) -> numpy.ndarray:
    return numpy.random.default_rng(seed).integers(0, 256, num, numpy.uint8)


def read(buffer: RDMABuffer, into: Any, timeout: float = LIMIT_S) -> Any:
    receipt = buffer.read_into(into, timeout, path="verbs").get()
    assert receipt.path == "verbs", receipt
    return receipt


def write(buffer: RDMABuffer, data: Any, timeout: float = LIMIT_S) -> Any:
    receipt = buffer.write_from(data, timeout, path="verbs").get()
    assert receipt.path == "verbs", receipt
    return receipt


def job_of(op: Any, buffer: RDMABuffer, local: Any, timeout: float = LIMIT_S) -> Job:
    return Job(op, buffer._handle, memory_of(local), time.monotonic() + timeout)


def content(pair: Pair, buffer: RDMABuffer) -> Any:
    return pair.far("content", key=buffer._handle.key)


def works(pair: Pair) -> None:
    """See that the next transfer is none the worse."""
    data = bytes_of(200_001, 7)
    buffer, mine = pair.far("make", data=data), numpy.zeros_like(data)
    read(buffer, mine)
    assert (mine == data).all()
    pair.far("drop", key=buffer._handle.key)


# --- exact


@check
def first_read(pair: Pair) -> str:
    data = bytes_of(MIB)
    buffer, mine = pair.far("make", data=data), numpy.zeros(MIB, numpy.uint8)
    receipt = read(buffer, mine)
    assert (mine == data).all()
    return str(receipt)


@check
def sizes(pair: Pair) -> str:
    nums = [
        1,
        2,
        7,
        8,
        63,
        4095,
        4096,
        4097,
        65_535,
        65_536,
        65_537,
        MIB - 1,
        MIB,
        MIB + 1,
        3 * MIB + 5,
        8 * MIB,
    ]
    for i, num in enumerate(nums):
        data = bytes_of(num, i)
        buffer, mine = pair.far("make", data=data), numpy.zeros(num, numpy.uint8)
        read(buffer, mine)
        assert (mine == data).all(), f"read of {num}"
        new = bytes_of(num, i + 1000)
        write(buffer, new)
        assert (content(pair, buffer) == new).all(), f"write of {num}"
        pair.far("drop", key=buffer._handle.key)
    return f"{len(nums)} sizes, each read and written"


@check
def unaligned_offsets(pair: Pair) -> str:
    data = bytes_of(2 * MIB)
    buffer, rng = pair.far("make", data=data), numpy.random.default_rng(SEED)
    expected = data.copy()
    for i in range(24):
        num = int(rng.integers(1, 200_000))
        there, here = int(rng.integers(0, 2 * MIB - num)), int(rng.integers(0, 4097))
        mine = numpy.full(num + here + 9, 0xAA, numpy.uint8)
        if i % 2:
            read(buffer[there : there + num], mine[here : here + num])
            assert (mine[here : here + num] == expected[there : there + num]).all()
            assert (mine[:here] == 0xAA).all()
            assert (mine[here + num :] == 0xAA).all()
        else:
            new = bytes_of(num, i)
            mine[here : here + num] = new
            write(buffer[there : there + num], mine[here : here + num])
            expected[there : there + num] = new
    assert (content(pair, buffer) == expected).all()
    return "24 random places, and nothing beside them"


@check
def strides(pair: Pair) -> str:
    rng = numpy.random.default_rng(SEED)
    data = rng.random((48, 20, 33))
    buffer = pair.far("make", data=data)
    parts: list[Any] = [
        numpy.s_[::2],
        numpy.s_[:, 3:9],
        numpy.s_[5, ::-1],
        numpy.s_[10:60, :, 4],
        numpy.s_[::-3, ::2, ::5],
        numpy.s_[..., 1:20],
    ]
    for index in parts:
        wanted = data[index]
        plain, strewn = (
            numpy.zeros_like(wanted),
            numpy.zeros((*wanted.shape[:-1], wanted.shape[-1] * 2))[..., ::2],
        )
        for mine in (plain, strewn):
            read(buffer[index], mine)
            assert (mine == wanted).all(), f"read of {index}"
            new = rng.random(wanted.shape)
            mine[...] = new
            write(buffer[index], mine)
            data[index] = new
            wanted = data[index]
    assert (content(pair, buffer) == data).all()
    return f"{len(parts)} parts, into contiguous and strewn memory"


@check
def dtypes(pair: Pair) -> str:
    rng = numpy.random.default_rng(SEED)
    names = [
        "bool",
        "int8",
        "uint16",
        "int32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ]
    for name in names:
        data = rng.integers(0, 2, (37, 411)).astype(name) * (1 if name == "bool" else rng.integers(1, 9))
        data = data.astype(name)
        buffer = pair.far("make", data=data)
        mine = numpy.zeros_like(data)
        read(buffer, mine)
        assert (mine == data).all(), name
        write(buffer[:, 5:300], mine[:, 5:300][::-1].copy())
        data[:, 5:300] = data[:, 5:300][::-1].copy()
        assert (content(pair, buffer) == data).all(), name
    return ", ".join(names)


@check
def kinds_of_memory(pair: Pair) -> str:
    data = bytes_of(300_000)
    for kind in ("array", "bytes", "segment", "read-only"):
        buffer = pair.far("make", data=data, kind=kind)
        for mine in (
            numpy.zeros(300_000, numpy.uint8),
            bytearray(300_000),
            empty(300_000, dtype="uint8", kind="array"),
        ):
            read(buffer, mine)
            assert bytes(mine) == data.tobytes()
            if kind != "read-only":
                write(buffer, bytes(mine))
    return "owner: array, bytearray, segment, bytes; here: array, bytearray, segment, bytes"


@check
def many_small_pieces(pair: Pair) -> str:
    data = bytes_of(6000 * 1536).reshape(6000, 1536)
    buffer = pair.far("make", data=data)
    mine = numpy.zeros((6000, 2048), numpy.uint8)
    read(buffer[:, :1100], mine[:, :1100])
    assert (mine[:, :1100] == data[:, :1100]).all()
    assert not mine[:, 1100:].any()
    write(buffer[:, 400:401], mine[:, 2047:])  # single bytes at the owner
    data[:, 400] = 0
    assert (content(pair, buffer) == data).all()
    wide = numpy.zeros((6000, 4096), numpy.uint8)
    receipt = read(buffer, wide[:, 100:1636])  # contiguous there, strewn here
    assert (wide[:, 100:1636] == data).all()
    assert not wide[:, :100].any()
    return f"6,000 pieces three ways; {receipt}"


@check
def action_of_many(pair: Pair) -> str:
    datas = [bytes_of(10_000 + i, i) for i in range(40)]
    buffers = [pair.far("make", data=d) for d in datas]
    mine = [numpy.zeros_like(d) for d in datas]
    action = RDMAAction()
    for buffer, one in zip(buffers, mine, strict=True):
        action.read_remote(one, buffer)
    receipt = action.submit(LIMIT_S, path="verbs").get()
    assert all((a == b).all() for a, b in zip(mine, datas, strict=True))
    return str(receipt)


@check
def concurrent_readers_and_writers(pair: Pair) -> str:
    data = bytes_of(4 * MIB)
    buffer = pair.far("make", data=data)
    size = MIB // 2

    def work(i: int) -> None:
        part = slice(i * size, (i + 1) * size)
        for turn in range(6):
            if i % 2:
                new = bytes_of(size, 100 * i + turn)
                write(buffer[part], new)
                data[part] = new
            mine = numpy.zeros(size, numpy.uint8)
            read(buffer[part], mine)
            assert (mine == data[part]).all(), f"slice {i}, turn {turn}"

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work, i) for i in range(8)]:
            future.result(LIMIT_S)
    assert (content(pair, buffer) == data).all()
    idle = [len(v) for v in pair.path.routes.idle.values()]
    return f"8 threads, idle connections afterwards: {idle}"


@check
def the_owner_sleeps_meanwhile(pair: Pair) -> str:
    data = bytes_of(2 * MIB)
    buffer, mine = pair.far("make", data=data), numpy.zeros(2 * MIB, numpy.uint8)
    read(buffer, mine)
    os.kill(pair.far.pid, signal.SIGSTOP)
    try:
        mine[:] = 0
        read(buffer, mine)
        assert (mine == data).all()
        write(buffer, data[::-1].copy())
    finally:
        os.kill(pair.far.pid, signal.SIGCONT)
    assert (content(pair, buffer) == data[::-1]).all()
    return "read and written while its process was stopped"


# --- buffers that go away


@check
def dropped_before(pair: Pair) -> str:
    buffer, mine = pair.far("make", data=bytes_of(MIB)), numpy.zeros(MIB, numpy.uint8)
    read(buffer, mine)
    assert pair.far("num_made", key=buffer._handle.key) == 1
    pair.far("drop", key=buffer._handle.key)
    fails(BufferGone, lambda: read(buffer, mine), "is gone")
    fails(BufferGone, lambda: write(buffer, mine), "is gone")
    works(pair)
    return str(fails(BufferGone, lambda: read(buffer[:10], bytearray(10)), "is gone"))


@check
def dropped_while_reading(pair: Pair) -> str:
    return _dropped_within(pair, READ)


@check
def dropped_while_writing(pair: Pair) -> str:
    return _dropped_within(pair, WRITE)


def _dropped_within(pair: Pair, op: Any) -> str:
    buffer, mine = pair.far("make", data=bytes_of(20 * MIB)), numpy.zeros(20 * MIB, numpy.uint8)
    job = job_of(op, buffer, mine)
    dropped: list[bool] = []

    def drop() -> None:
        if job.done_bytes and not dropped:
            dropped.append(True)
            pair.far("drop", key=buffer._handle.key)

    job.on_progress = drop
    error = fails(BufferGone, lambda: pair.plane.run(job, "verbs"), "is gone")
    assert dropped
    works(pair)
    return f"{job.done_bytes} bytes, then: {error}"


@check
def key_gone_though_memory_is_reachable(pair: Pair) -> str:
    buffer, mine = pair.far("make", data=bytes_of(MIB)), numpy.zeros(MIB, numpy.uint8)
    read(buffer, mine)
    before = content(pair, buffer)
    pair.far("forget_the_key_only", key=buffer._handle.key)
    fails(BufferGone, lambda: read(buffer, mine), "is gone")
    fails(BufferGone, lambda: write(buffer, 255 - before), "is gone")
    assert (content(pair, buffer) == before).all(), "written in spite of it"
    works(pair)
    return "the line of the table is looked at, not only the NIC's key"


@check
def small_bytes_of_a_gone_buffer_stay_away(pair: Pair) -> str:
    buffer, mine = pair.far("make", data=bytes_of(100)), numpy.full(100, 0x55, numpy.uint8)
    read(buffer, numpy.zeros(100, numpy.uint8))
    pair.far("forget_the_key_only", key=buffer._handle.key)
    fails(BufferGone, lambda: read(buffer, mine), "is gone")
    assert (mine == 0x55).all()
    return "not copied"


# --- errors


@check
def wrong_key(pair: Pair) -> str:
    texts = []
    for op in (read, write):
        buffer, mine = pair.far("make", data=bytes_of(MIB)), numpy.zeros(MIB, numpy.uint8)
        read(buffer, mine)
        for key, target in list(pair.path._targets.items()):
            if key[0] == buffer._handle.key:
                pair.path._targets[key] = replace(target, rkey=target.rkey ^ 0x5500)
        texts.append(
            str(fails(PathFailed, lambda op=op, b=buffer, m=mine: op(b, m), "remote access error", "rxe0:1"))
        )
        read(buffer, mine)  # asked anew, connected anew
    return texts[0]


@check
def error_then_next_transfer(pair: Pair) -> str:
    for _ in range(5):
        wrong_key(pair)
    assert pair.far("num_halves") <= 12, pair.far("num_halves")
    return f"the owner keeps {pair.far('num_halves')} queue pairs after ten errors"


@check
def connections_the_owner_closed(pair: Pair) -> str:
    works(pair)
    pair.far("disconnect")
    works(pair)
    return "connected anew"


@check
def a_successor_takes_the_place(pair: Pair) -> str:
    """A rank that was started anew: what the old one had at the owner is closed."""
    works(pair)
    num = pair.far("num_halves")
    old, pair.plane._owner = pair.plane.owner, replace(pair.plane.owner, process=12345)
    routes, pair.path.routes.idle = pair.path.routes.idle, {}
    works(pair)
    assert pair.far("num_halves") == 1
    pair.plane._owner = old
    for some in (*routes.values(), *pair.path.routes.idle.values()):
        for route in some:
            route.connection.close()
    pair.path.routes.idle.clear()
    works(pair)
    assert pair.far("num_halves") == 1
    return f"{num} before, 1 after"


@check
def nothing_gets_through(pair: Pair) -> str:
    buffer, mine = pair.far("make", data=bytes_of(MIB)), numpy.full(MIB, 3, numpy.uint8)
    pair.far("disconnect")
    pair.far("be_deaf", deaf=True)
    try:
        start = time.monotonic()
        error = fails(
            RDMAError, lambda: read(buffer, mine), "retry exceeded", "its process answers", "4791", "MTU"
        )
        seconds = time.monotonic() - start
        fails(RDMAError, lambda: read(buffer, mine), "retry exceeded")  # not tried again at once
    finally:
        pair.far("be_deaf", deaf=False)
        pair.path._avoided.clear()
    assert (mine == 3).all()
    works(pair)
    return f"after {seconds:.1f} s: {error}"


@check
def time_out_within_a_transfer(pair: Pair) -> str:
    buffer, mine = pair.far("make", data=bytes_of(20 * MIB)), numpy.zeros(20 * MIB, numpy.uint8)
    job = job_of(READ, buffer, mine)

    def hurry() -> None:
        if job.done_bytes:
            job.deadline = time.monotonic() - 1

    job.on_progress = hurry
    error = fails(TransferTimeout, lambda: pair.plane.run(job, "verbs"), "not over in time")
    mine[:] = 0x77
    works(pair)  # what the NIC had begun before would be done by now
    assert (mine == 0x77).all(), "written after the error"
    return str(error)


@check
def time_out_of_a_silent_peer(pair: Pair) -> str:
    buffer, mine = pair.far("make", data=bytes_of(MIB)), numpy.zeros(MIB, numpy.uint8)
    read(buffer, mine)
    routes = [r for some in pair.path.routes.idle.values() for r in some]
    polls, sleeps = (sum(getattr(r.connection, name) for r in routes) for name in ("num_polls", "num_sleeps"))
    pair.far("disconnect")
    job = job_of(READ, buffer, mine, 1.0)
    start, used = time.monotonic(), time.thread_time()
    error = fails(TransferTimeout, lambda: pair.plane.run(job, "verbs"))
    seconds, used = time.monotonic() - start, time.thread_time() - used
    polls = sum(r.connection.num_polls for r in routes) - polls
    sleeps = sum(r.connection.num_sleeps for r in routes) - sleeps
    assert 1 <= sleeps <= 50, sleeps
    assert polls < 2000, polls
    assert seconds < 10, seconds
    idle = [r for some in pair.path.routes.idle.values() for r in some]
    (used_one,) = (r for r in routes if r not in idle)
    assert used_one.connection._is_closed, "its queue pair lives on, with a READ under way"
    works(pair)
    return f"{seconds:.2f} s, {used:.3f} s of a processor, {polls} polls, {sleeps} sleeps: {error}"


@check
def cancelled(pair: Pair) -> str:
    buffer, mine = pair.far("make", data=bytes_of(20 * MIB)), numpy.zeros(20 * MIB, numpy.uint8)
    job = job_of(READ, buffer, mine)
    job.on_progress = lambda: job.cancelled.set() if job.done_bytes else None
    error = fails(RDMAError, lambda: pair.plane.run(job, "verbs"), "cancelled")
    mine[:] = 0x11
    works(pair)
    assert (mine == 0x11).all()
    return str(error)


@check
def owner_killed_within_a_read(pair: Pair) -> str:
    return _killed_within(pair, READ)


@check
def owner_killed_within_a_write(pair: Pair) -> str:
    return _killed_within(pair, WRITE)


def _killed_within(pair: Pair, op: Any) -> str:
    victim = pair.victims.pop()
    buffer, mine = victim("make", data=bytes_of(20 * MIB)), numpy.zeros(20 * MIB, numpy.uint8)
    job = job_of(op, buffer, mine)
    killed: list[float] = []

    def kill() -> None:
        if job.done_bytes and not killed:
            victim.kill()
            killed.append(time.monotonic())

    job.on_progress = kill
    error = fails((BufferGone, PathFailed), lambda: pair.plane.run(job, "verbs"))
    seconds = time.monotonic() - killed[0]
    assert seconds < 30, seconds
    fails(BufferGone, lambda: read(buffer, mine), "ended")
    works(pair)
    return f"{seconds:.1f} s after the kill: {type(error).__name__}: {error}"


# --- registrations


@check
def local_memory_stays_registered(pair: Pair) -> str:
    buffer = pair.far("make", data=bytes_of(MIB))
    mine = numpy.zeros(MIB, numpy.uint8)
    read(buffer, mine)
    (memories,) = pair.path._memories.values()
    before = memories.num_registered
    for _ in range(3):
        read(buffer, mine)
    read(buffer[: MIB // 2], mine[: MIB // 2])  # a part of it
    assert memories.num_registered == before
    plain = bytearray(MIB)
    read(buffer, plain)
    read(buffer, plain)
    assert memories.num_registered == before + 2  # nothing tells whether that is still the same memory
    kept = len(memories)
    del mine
    works(pair)
    assert len(memories) <= kept
    return f"{memories.num_registered} registrations so far, {len(memories)} kept"


@check
def memory_freed_and_allocated_again(pair: Pair) -> str:
    data = bytes_of(4 * MIB)
    buffer = pair.far("make", data=data)
    addresses = set()
    for i in range(12):
        mine = numpy.full(4 * MIB, i, numpy.uint8) if i % 2 else empty(4 * MIB, dtype="uint8", kind="array")
        addresses.add(mine.__array_interface__["data"][0])
        read(buffer, mine)
        assert (mine == data).all(), i
        del mine
    return f"12 arrays at {len(addresses)} addresses"


@check
def registrations_are_bounded(pair: Pair) -> str:
    (memories,) = pair.path._memories.values()
    buffer = pair.far("make", data=bytes_of(100_000))
    before, memories._max_kept = memories._max_kept, 3
    try:
        arrays = [numpy.zeros(100_000, numpy.uint8) for _ in range(8)]
        for array in arrays:
            read(buffer, array)
            assert len(memories) <= 3
        num = memories.num_registered
        read(buffer, arrays[-1])
        assert memories.num_registered == num
        read(buffer, arrays[0])
        assert memories.num_registered == num + 1
    finally:
        memories._max_kept = before
    return "the last used stay"


@check
def posting_leaks_nothing(pair: Pair) -> str:
    data = bytes_of(2000 * 1200).reshape(2000, 1200)
    buffer, mine = pair.far("make", data=data), numpy.zeros((2000, 1300), numpy.uint8)

    def pages() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1])

    for _ in range(2):
        read(buffer[:, :1100], mine[:, :1100])

    def growth() -> int:
        before = pages()
        for _ in range(3):
            read(buffer[:, :1100], mine[:, :1100])
        return (pages() - before) * 4096

    grown = [
        growth() for _ in range(3)
    ]  # what leaks does so each time; a huge page that the kernel makes of small ones comes once
    assert min(grown) < 6_000 * 48, f"{grown} bytes more, each after 6,000 requests"
    return f"{grown} bytes more, each after 6,000 requests"


# --- what people are told


@check
def devices_and_backend(pair: Pair) -> str:
    from monarch_nb.rdma.availability import get_rdma_backend, is_ibverbs_available
    from monarch_nb.rdma.paths.verbs.report import describe_devices, memlock_text, unavailable_reason

    assert is_ibverbs_available()
    assert get_rdma_backend() == "ibverbs"
    assert unavailable_reason() == ""
    (device,) = describe_devices()
    assert device.usable, device
    assert (device.name, device.port, device.link_layer, device.state) == ("rxe0", 1, "Ethernet", "ACTIVE")
    assert device.gid.startswith("192.0.2.1 (RoCE v2"), device
    assert device.mtu == 4200
    return f"{device} {memlock_text()}"


@check
def refusals(pair: Pair) -> str:
    from monarch_nb.rdma.paths.verbs import device as verbs_device

    buffer = pair.far("make", data=bytes_of(10))
    here = memory_of(bytearray(10))
    refusal = lambda: pair.path.refusal(buffer._handle, here)  # noqa: E731
    assert refusal() == ""
    assert buffer.backend == "shm", "on the same machine there's a better way"
    os.environ[verbs_device.VARIABLE] = "mlx5_0"
    try:
        text = refusal()
        assert text == "MONARCH_NB_RDMA_DEVICES=mlx5_0 permits none of rxe0:1", text
        os.environ[verbs_device.VARIABLE] = "rxe0:1"
        assert refusal() == ""
    finally:
        del os.environ[verbs_device.VARIABLE]
    link = lambda state: subprocess.run(["ip", "link", "set", "net0", state], check=True)  # noqa: E731
    link("down")
    try:
        verbs_device.look_again()
        down = refusal()
        fails(RDMAError, lambda: read(buffer, bytearray(10)), "no RDMA port is active")
    finally:
        link("up")
    deadline = time.monotonic() + LIMIT_S
    while refusal():  # its address comes a moment later
        verbs_device.look_again()
        assert time.monotonic() < deadline
    works(pair)
    return f"{text}; {down}"


@check
def no_torch(pair: Pair) -> str:
    for modules in (list(sys.modules), pair.far("modules")):
        heavy = {"torch", "IPython", "ipywidgets"} & set(modules)
        assert not heavy, heavy
    assert sys.path == SEARCH_PATH, sys.path
    return "neither here nor at the owner"


@check
def closing(pair: Pair) -> str:
    """Comes after all that use them: ends the data planes."""
    code = pair.close()
    assert code == 0, f"the owner ended with {code}"
    left = [t.name for t in threading.enumerate() if t.name.startswith("monarch_nb")]
    assert not left, left
    opened = [
        os.readlink(f"/proc/self/fd/{n}")
        for n in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{n}")
    ]
    assert not [o for o in opened if "infiniband" in o], opened
    return "no thread and no descriptor left"


@check
def through_a_mesh(pair: Pair) -> str:
    """Real ranks of a real mesh, and this program as a third; after the others, for they would share the
    processors.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    environment = {
        **os.environ,
        "MONARCH_NB_PRELOAD": "none",
        "PYTHONPATH": os.pathsep.join(
            [os.path.join(here, "without_torch"), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }
    command = [sys.executable, os.path.join(here, "mesh_program.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    measured = [line.split() for line in done.stdout.splitlines() if line.split()[:3] == ["0", "1", "verbs"]]
    assert len(measured) == 1, done.stdout
    assert float(measured[0][3]) > 0, done.stdout
    return " ".join(measured[0])


def main(results: str, names: list[str]) -> int:
    import faulthandler

    faulthandler.enable()
    pair = Pair(num_victims=2)
    num_bad = 0
    with open(results, "w") as file:
        for name in names or list(CHECKS):
            start = time.monotonic()
            found: dict[str, Any] = {"name": name}
            try:
                found |= {"ok": True, "detail": str(CHECKS[name](pair))}
            except BaseException:
                num_bad += 1
                found |= {"ok": False, "detail": traceback.format_exc()}
            found["seconds"] = round(time.monotonic() - start, 2)
            file.write(json.dumps(found) + "\n")
            file.flush()
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
