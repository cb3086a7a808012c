"""The main function of a rank, from fork to exit."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import NoReturn

from msgspec import convert
from msgspec.structs import asdict, replace

import monarch_nb.actor  # noqa: F401 - what cells and actors use is in the zygote already, for all ranks
from monarch_nb import _reload, _sources
from monarch_nb._cells import Namespace
from monarch_nb._protocol.base import decode, encode
from monarch_nb._protocol.events import RankIsUp, Renumbered
from monarch_nb._protocol.rank_spec import OwnSpec, RankSpec, SharedSpec
from monarch_nb._rank import child_processes, keyboard, launchers, streams, workspace
from monarch_nb._rank.binding import BindingError, bind
from monarch_nb._rank.debugger import Debugger
from monarch_nb._rank.forking import wait_for_adoption
from monarch_nb._rank.random_numbers import reseed
from monarch_nb._rank.rank_actors import RankActors
from monarch_nb._rank.reloading import Reloader
from monarch_nb._rank.worker import Worker
from monarch_nb._runtime import forked
from monarch_nb._shape import elastic_numbers
from monarch_nb._transport import process_context
from monarch_nb._transport.context import CallContext, call_context
from monarch_nb._transport.transport import Transport
from monarch_nb._wire import address, codec
from monarch_nb._wire import message as wire
from monarch_nb._wire.activity_page import ActivityPage
from monarch_nb._wire.control_group import LimitError, enter_group, group_name
from monarch_nb._wire.dump import DumpFile
from monarch_nb._wire.granted import granted_cores
from monarch_nb._wire.limits import VARIABLE, parse_limits
from monarch_nb._wire.loaded import loaded
from monarch_nb._wire.mesh_address import MeshAddress
from monarch_nb._wire.process import die_with_parent, set_process_name

_NOTICE_S = 0.5
LINGER_S = 0.5
_MOST_COMPILERS = 32
"""The number of processes that `torch.compile` starts at most, by itself."""
UNREACHABLE = (
    "ended: code that ran there closed the file descriptors by which the rank hears of the mesh, as "
    "os.closerange() does"
)


class Rank:
    """This process as a rank of a mesh: its place, its inbox, the worker of its main thread, its actors."""

    def __init__(self, spec: RankSpec, pipe: streams.OutputPipe) -> None:
        self.spec = spec
        self.rank = spec.place.rank
        self.world_size = spec.place.world_size
        self.pipe = pipe
        self.transport = Transport(spec.place.proc, spec.host.directory)
        self.transport.mesh = MeshAddress(*spec.shared.place.mesh)
        self.transport.mesh_id = self.transport.mesh.mesh_id
        self.transport.unsettled, self.transport.mark_output = pipe.unsettled, pipe.mark_answer
        pipe.burst.main_is_busy = lambda: self.worker.current is not None
        self.page = ActivityPage(address.page_path(spec.host.directory, spec.place.proc))
        self.debugger = Debugger(self.transport)
        self.worker = Worker(self)
        self.actors = RankActors(self)
        self.reloader = Reloader(self.actors)

    @property
    def group(self) -> str:
        """The name of the processes that it was spawned with."""
        return self.spec.group.group

    @property
    def extent(self) -> bytes:
        """The extent of that mesh, encoded."""
        return self.spec.group.extent

    @property
    def python(self) -> str | None:
        """The interpreter that its host has for ranks, if not the controller's."""
        return self.spec.group.python

    @property
    def namespace(self) -> Namespace:
        """The variables of its cells."""
        return self.worker.namespace

    def variables(self, names: Sequence[str]) -> Namespace:
        """Return some of the variables.

        Raises:
            NameError: naming those that aren't defined.
        """
        return self.worker.variables(names)

    def receive_guest(self, transport: Transport) -> None:
        """Make this process a guest of another mesh: it manages its own objects there, and leaves when it
        leaves its own mesh.
        """
        transport.on_call = self.actors.on_guest_call
        process_context.guest_transports.append(transport)
        self.transport.on_close.append(lambda: transport.close(LINGER_S))

    def renumber(self, place: Renumbered) -> None:
        """Adopt another rank number: the mesh was resized."""
        self.spec = _moved(self.spec, place)
        self.rank, self.world_size = place.rank, place.world_size
        process_context.set_whereabouts(rank=self.rank)
        set_process_name(f"mnb-rank{self.rank}")
        if "RANK" in os.environ:
            os.environ.update(elastic_numbers(asdict(place)))
        _prepare_namespace(self)
        self.worker.renumbered()


def _moved(spec: RankSpec, to: Renumbered) -> RankSpec:
    """Return a rank's specification with another place."""
    shared = replace(
        spec.shared,
        group=replace(spec.group, extent=to.extent),
        place=replace(spec.shared.place, procs=to.procs, hosts=to.hosts),
    )
    numbers = {name: value for name, value in asdict(to).items() if name not in ("extent", "procs", "hosts")}
    return RankSpec(shared, replace(spec.own, place=replace(spec.place, **numbers)))


def read_spec(shared: bytes, own: object) -> RankSpec:
    """Read a rank's specification, as a zygote was sent it: the shared part, encoded, and the rank's own from
    JSON.
    """
    return RankSpec(decode(SharedSpec, shared), convert(own, OwnSpec))


def read_whole_spec(encoded: bytes) -> RankSpec:
    """Read the specification that a fresh interpreter was sent."""
    return decode(RankSpec, encoded)


def run_rank(spec: RankSpec, host_pid: int, cores: int | None = None) -> None:
    """Run a rank until told to stop. Called in a fresh process; `cores`: as `granted_cores` gives them, if
    that's known: it takes a millisecond.
    """
    set_process_name(f"mnb-rank{spec.place.rank}")
    _set_environment(spec)
    pipe = streams.install(spec.own.token)
    _sources.guard()
    _reload.install()
    reseed()
    _bind(spec)
    cpus = _limit(spec, host_pid)
    _limit_threads(spec, cores, cpus)
    rank = Rank(spec, pipe)
    process_context.set_transport(rank.transport)
    process_context.rank = rank
    process_context.set_whereabouts(rank=rank.rank, host=spec.host.hostname, pid=os.getpid())
    on_terminate = partial(_on_terminate, rank)
    signal.signal(signal.SIGTERM, on_terminate)
    dump_file = DumpFile(address.dump_path(spec.host.directory, spec.place.proc))
    _tie_to_host(host_pid)
    if spec.group.bootstrap is not None:
        _run_bootstrap(spec.group.bootstrap)
    _prepare_namespace(rank)
    forked.install(on_terminate, pipe.forget_lock)
    rank.debugger.install()
    keyboard.install(rank.transport)
    child_processes.install()
    launchers.install()
    rank.debugger.set(skip=spec.shared.place.skip, on_error=spec.shared.place.on_error)
    rank.transport.reader.on_broken = partial(_leave_unreachable, rank.spec, os.getpid())
    with suppress(SystemExit):  # from now on there may be actors, which clean up before this process ends
        rank.transport.start()
        dump_file.aim(rank.transport.reader.background_thread_id)
        _tell_controller(rank)
        rank.worker.serve()
    rank.actors.stop()
    pipe.settle()
    rank.transport.close(LINGER_S)
    os._exit(0)


def _tell_controller(rank: Rank) -> None:
    """Tell the controller that this rank is up."""
    up, controller = RankIsUp(os.getpid()), address.host_proc(rank.transport.host)
    frame = wire.pack(
        wire.EVENT, src=rank.transport.me, dst=controller, name=up.wire_name.encode(), payload=encode(up)
    )
    rank.transport.send(controller, frame)


def _leave_unreachable(spec: RankSpec, pid: int) -> None:
    """End at once, and have the host process say why: code of the user's has closed what messages come by, so
    nobody can be answered any more.
    """
    if os.getpid() != pid:
        return  # a child that was forked by the user's code: its descriptors are its own affair
    _leave_saying(spec, UNREACHABLE)


def _leave_saying(spec: RankSpec, words: str) -> NoReturn:
    """End at once; the host process says why."""
    with suppress(OSError):
        fd = os.open(
            address.last_words_path(spec.host.directory, spec.place.proc), os.O_CREAT | os.O_WRONLY, 0o600
        )
        os.write(fd, words.encode())
    os._exit(1)


def _on_terminate(rank: Rank, number: int, frame: FrameType | None) -> None:
    """Exit, once: a scheduler signals all processes of a job, and then the host process signals its ranks
    again.
    """
    if rank.worker.inbox.closed or _is_for_host(rank.spec):
        return
    rank.worker.inbox.closed = True  # IPython swallows a SystemExit inside a cell
    raise SystemExit(0)


def _is_for_host(spec: RankSpec) -> bool:
    """Say whether a SIGTERM is one that the host process gets as well, from the engine that started it: then
    the host process has states saved, and tells its ranks when to exit. The order of the signals isn't
    defined, so this waits a little.
    """
    if not spec.host.launched:
        return False
    directory = spec.host.directory
    notice, stop = address.notice_path(directory), address.stop_path(directory, spec.place.proc)
    limit = time.monotonic() + _NOTICE_S
    while not os.path.exists(stop):
        if os.path.exists(notice):
            return True
        if time.monotonic() > limit:
            return False
        time.sleep(0.01)
    return False


def _tie_to_host(host_pid: int) -> None:
    """Wait until the host process has adopted this one, then ask the kernel to end this process with it."""
    if not wait_for_adoption(host_pid):
        os._exit(1)
    die_with_parent()
    if os.getppid() != host_pid:
        os._exit(1)


def _bind(spec: RankSpec) -> None:
    """Bind this rank to the CPUs and memory of `proc_bind`; if that fails, the rank must not run."""
    if spec.group.bind:
        try:
            bind(spec.group.bind[spec.place.local_rank % len(spec.group.bind)])
        except BindingError as error:
            os.write(2, f"{error}\n".encode())
            os._exit(1)


def _set_environment(spec: RankSpec) -> None:
    group = spec.group
    os.environ.update(group.env)
    os.environ.update(spec.place.own_env)
    sys.path[:] = group.sys_path
    sys.argv[:] = [group.argv0]
    if group.cwd and os.path.isdir(group.cwd):
        os.chdir(group.cwd)
    if spec.shared.place.elsewhere:
        workspace.adopt(spec.shared.place.elsewhere, group.cwd)
    if spec.gpu and "CUDA_VISIBLE_DEVICES" not in group.env:
        os.environ["CUDA_VISIBLE_DEVICES"] = spec.gpu


def _limit(spec: RankSpec, host_pid: int) -> int | None:
    """Enter a control group with the limits that the user has set, if any; if that fails, the rank must not
    run. Return how many processors' time it may use; None: no limit.
    """
    text = spec.group.env.get(VARIABLE)
    if not text:
        return None
    limits = parse_limits(text)
    try:
        enter_group(limits, group_name(host_pid, spec.place.proc))
    except LimitError as error:
        _leave_saying(spec, str(error))
    return None if limits.cpus is None else math.ceil(limits.cpus)


def _limit_threads(spec: RankSpec, cores: int | None, cpus: int | None) -> None:
    """Limit this rank's threads to its share of the cores, unless the user has set another limit.

    Args:
        cpus: how many processors' time it may use; None: no limit.
    """
    if cores is None or spec.group.bind:
        cores = granted_cores()
    share = cores if spec.group.bind else max(1, cores // spec.place.local_world_size)
    share = share if cpus is None else max(1, min(share, cpus))
    _limit_compilers(share)
    wanted = os.environ.get("OMP_NUM_THREADS")
    if wanted is None:
        num = share
        os.environ["OMP_NUM_THREADS"] = str(num)
    else:
        outermost = wanted.split(",")[0].strip()  # OpenMP accepts a number for each level of nesting
        if not outermost.isdecimal() or not int(outermost):
            return  # as in OpenMP, an invalid value has no effect
        num = int(outermost)
    torch = loaded("torch")
    if torch is not None:
        torch.set_num_threads(num)


def _limit_compilers(num: int) -> None:
    """Limit the processes that `torch.compile` starts to this rank's share of the cores, unless the user has
    set another limit: each rank would start as many as there are cores, and each of them imports torch.
    """
    if "TORCHINDUCTOR_COMPILE_THREADS" in os.environ:
        return
    num = min(num, _MOST_COMPILERS)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(num)
    if (config := loaded("torch._inductor.config")) is not None:
        config.compile_threads = num


def _run_bootstrap(encoded: bytes) -> None:
    call_context.set(CallContext())
    function = codec.decode(encoded)
    function()


def _prepare_namespace(rank: Rank) -> None:
    """Define the names that functions and cells find; the others are made with the shell (see `worker`)."""
    rank.worker.namespace.update(
        rank=rank.rank, world_size=rank.world_size, local_rank=rank.spec.place.local_rank
    )
