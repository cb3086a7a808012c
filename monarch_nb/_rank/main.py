"""A rank from fork to end."""

from __future__ import annotations

import ctypes
import os
import pickle
import random
import signal
import sys
import time
import traceback
from contextlib import suppress
from types import FrameType
from typing import Any

from monarch_nb._post import here
from monarch_nb._post.context import CallContext, call_context
from monarch_nb._post.failure import encode_failure
from monarch_nb._post.office import Office
from monarch_nb._rank import streams
from monarch_nb._rank.actors import ActorRunner
from monarch_nb._rank.worker import Worker
from monarch_nb._wire import address, codec
from monarch_nb._wire import message as wire
from monarch_nb._wire.message import Message

_PR_SET_NAME = 15
_PR_SET_PDEATHSIG = 1
_ADOPTION_S = 5.0
ORPHAN_S = 10.0
"""How long a call may be ahead of the message that spawns its actor."""


class Rank:
    """This process as a rank of a mesh. Calls arrive in the reading thread."""

    def __init__(self, spec: dict[str, Any], pipe: streams.OutputPipe) -> None:
        self.spec = spec
        self.rank: int = spec["rank"]
        self.world_size: int = spec["world_size"]
        self.pipe = pipe
        self.actors: dict[int, ActorRunner] = {}
        self.office = Office(spec["proc"], spec["directory"])
        self.worker = Worker(self)
        self._early: dict[int, list[Message]] = {}
        self._gone: set[int] = set()
        self.kept: dict[int, Any] = {}
        self.office.on_call = self._on_call

    # --- calls; in the reading thread

    def _on_call(self, message: Message) -> Any:
        if message.name == b"__spawn__":
            self._spawn(message)
            return None
        if message.target == 0:
            return self._on_system_call(message)
        runner = self.actors.get(message.target)
        if runner is not None:
            return runner.inbox.put(message)
        if message.target in self._gone:
            self._no_such_actor(message)
            return None
        self._early.setdefault(message.target, []).append(message)
        self.office.reader.call_at(time.monotonic() + ORPHAN_S, lambda: self._give_up(message.target))
        return None

    def _on_system_call(self, message: Message) -> Any:
        name = message.name
        if name == b"stop_actor":
            self._stop_actor(message)
        elif name == b"ping":
            self._reply(message, None)
        elif name == b"status":
            self._reply(message, self.status())
        elif name == b"stacks":
            self._reply(message, self.stacks())
        elif name == b"__supervise__":
            self._supervise(message)
        else:
            return self.worker.inbox.put(message)
        return None

    def _spawn(self, message: Message) -> None:
        runner = self.actors[message.target] = ActorRunner(self, message)
        for early in self._early.pop(message.target, ()):
            runner.inbox.put(early)

    def _give_up(self, actor_id: int) -> None:
        for message in self._early.pop(actor_id, ()):
            self._no_such_actor(message)

    def _no_such_actor(self, message: Message) -> None:
        if not message.ref:
            return
        failure = {
            "type": "SupervisionError",
            "message": f"there is no actor {message.target:x} on rank {self.rank}: it was stopped or never spawned",
            "traceback": "",
            "exception": None,
            "when": time.time(),
            "dead": True,
            "endpoint": message.name.decode(),
            **here.whereabouts(),
        }
        self.office.post(
            message.src, wire.REPLY, encode_failure(failure), flags=wire.ERROR, slot=message.slot, ref=message.ref
        )

    def _reply(self, message: Message, value: object) -> None:
        if message.ref:
            self.office.post(
                message.src, wire.REPLY, codec.encode(value), slot=message.slot, ref=message.ref
            )

    # --- actors

    def _stop_actor(self, message: Message) -> None:
        from monarch_nb._post.pending import Body

        actor_id = Body(self.office, message).value()
        runner = self.actors.pop(actor_id, None)
        self._gone.add(actor_id)
        if runner is not None:
            runner.stop()
        self._reply(message, None)

    def report_failure(self, owner: tuple[int, int], actor_id: int, failure: dict[str, Any]) -> None:
        """Tell the owner of an actor that it has failed."""
        proc, owner_actor = owner
        body = codec.Encoded(pickle.dumps({"actor_id": actor_id, "failure": failure}, 5))
        if address.is_client(proc):
            frame = wire.pack(
                wire.EVENT, src=self.office.me, dst=proc, name=b"actor_failed", payload=body.payload
            )
            self.office.send(proc, frame)
        else:
            self.office.post(proc, wire.CALL, body, target=owner_actor, name=b"__supervise__")

    def _supervise(self, message: Message) -> None:
        """A failure that no actor of this rank owns: say it where output goes."""
        from monarch_nb._post.pending import Body

        print(Body(self.office, message).value()["failure"]["traceback"], file=sys.stderr, flush=True)

    # --- state

    def status(self) -> dict[str, Any]:
        """Return what this rank is doing."""
        return {
            "rank": self.rank,
            "pid": os.getpid(),
            "busy_with": self.worker.busy_with,
            "actors": {r.name: len(r.inbox) for r in self.actors.values()},
        }

    @staticmethod
    def stacks() -> dict[str, str]:
        """Return the Python stack of each thread."""
        import threading

        names = {t.ident: t.name for t in threading.enumerate()}
        return {
            names.get(ident, str(ident)): "".join(traceback.format_stack(frame))
            for ident, frame in sys._current_frames().items()
        }

    # --- the end

    def stop(self) -> None:
        """End all actors, with their clean-up."""
        for runner in list(self.actors.values()):
            runner.stop()
        for runner in list(self.actors.values()):
            runner.thread.join(2.0)


def run_rank(spec: dict[str, Any], host_pid: int) -> None:
    """Be a rank until told to stop. Called in a fresh process."""
    _tie_to_host(host_pid)
    _set_name(f"mnb-rank{spec['rank']}")
    _set_environment(spec)
    pipe = streams.install(spec["token"])
    _reseed()
    _limit_threads(spec)
    rank = Rank(spec, pipe)
    here.set_office(rank.office)
    here.rank = rank
    here.set_whereabouts(rank=rank.rank, host=spec["hostname"], pid=os.getpid())
    signal.signal(signal.SIGTERM, lambda number, frame: _on_terminate(rank, frame))
    if spec.get("bootstrap") is not None:
        _run_bootstrap(spec, rank)
    _prepare_namespace(rank)
    up = pickle.dumps({"pid": os.getpid()}, 5)
    home = address.host_proc(rank.office.host)
    rank.office.send(home, wire.pack(wire.EVENT, src=rank.office.me, dst=home, name=b"up", payload=up))
    with suppress(SystemExit):
        rank.worker.serve()
    rank.stop()
    sys.stdout.flush()
    sys.stderr.flush()
    rank.office.close(500)
    os._exit(0)


def _on_terminate(rank: Rank, frame: FrameType | None) -> None:
    rank.worker.inbox.closed = True  # IPython swallows a SystemExit inside a cell
    raise SystemExit(0)


def _tie_to_host(host_pid: int) -> None:
    """Wait until the host process has adopted us, then ask to die with it."""
    limit = time.monotonic() + _ADOPTION_S
    while os.getppid() != host_pid:
        if time.monotonic() > limit:
            os._exit(1)
        os.sched_yield()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != host_pid:
        os._exit(1)


def _set_name(name: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def _set_environment(spec: dict[str, Any]) -> None:
    os.environ.update(spec["env"])
    os.environ.update(spec.get("own_env", {}))
    sys.path[:] = spec["sys_path"]
    sys.argv[:] = [spec.get("argv0", "")]
    if spec.get("cwd") and os.path.isdir(spec["cwd"]):
        os.chdir(spec["cwd"])
    gpus = spec.get("gpus")
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[spec["local_rank"] % len(gpus)]


def _reseed() -> None:
    """Forks share the zygote's random state: give each its own, as a fresh interpreter has."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _limit_threads(spec: dict[str, Any]) -> None:
    """Give this rank its share of the cores, unless the user has said otherwise."""
    if "OMP_NUM_THREADS" in spec["env"] or "OMP_NUM_THREADS" in os.environ:
        num = int(os.environ["OMP_NUM_THREADS"])
    else:
        num = max(1, (os.cpu_count() or 1) // spec["local_world_size"])
        os.environ["OMP_NUM_THREADS"] = str(num)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(num)


def _run_bootstrap(spec: dict[str, Any], rank: Rank) -> None:
    call_context.set(CallContext())
    function = codec.decode(spec["bootstrap"])
    function()


def _prepare_namespace(rank: Rank) -> None:
    """Define what cells find: rank, world_size, local_rank. `point`, `device` and `mesh` are made when first used."""
    rank.worker.namespace.update(
        rank=rank.rank, world_size=rank.world_size, local_rank=rank.spec["local_rank"]
    )
