"""The checkpoints of an actor: copies in this process' memory, and files written in the background.

The actor's thread takes copies between two calls; a thread of its own writes them. The last two copies stay
in memory: an actor that is made anew here, or on a rank that has taken another's place, goes on from the
newest one that all have.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from monarch_nb._journal.disk import check_room, why
from monarch_nb._protocol import calls
from monarch_nb._protocol.healing import CheckpointFailed, CheckpointGather, Resume
from monarch_nb._protocol.states import CheckpointKind, CheckpointPhase
from monarch_nb._runtime.snapshot import Snapshot, load, rebuild, save, take_snapshot
from monarch_nb._transport.call import call_one
from monarch_nb._transport.pending import OneReply
from monarch_nb._transport.transport import Transport, TransportClosed
from monarch_nb._wire import address, codec
from monarch_nb._wire import message as wire
from monarch_nb.exceptions import RequestFailed

if TYPE_CHECKING:
    import torch

KINDS = tuple(CheckpointKind)


class CheckpointError(RuntimeError):
    """The error of a checkpoint that could not be completed; the last good one still exists."""


class Checkpoints:
    """The checkpoints of one actor in this process; survives the actor.

    Args:
        epochs: see `ActorHost.checkpoint_epochs`.

    Attributes:
        kind: own, replicated or sharded: see `Checkpointed.checkpoint_state`.
    """

    def __init__(
        self, transport: Transport, actor_id: int, name: str, slot: int, size: int, epochs: Mapping[int, int]
    ) -> None:
        self.kind: str = CheckpointKind.OWN
        self.every = 0
        self.keep = 2
        self.directory = ""
        self.num_calls = 0
        self.last_path = ""
        self._transport = transport
        self._actor_id = actor_id
        self._epochs = epochs
        self._name = name
        self._slot = slot
        self._size = size
        self._buffers: list[dict[str, torch.Tensor]] = [{}, {}]
        self._snapshots: list[Snapshot] = []
        self._saving: threading.Thread | None = None
        self._saving_before: threading.Thread | None = None
        self._error: BaseException | None = None
        self._asked = False
        """Whether a caller waits for a save, and will be told how it ended."""

    def move(self, slot: int, size: int) -> None:
        """Record the actor's slot and number of members, after the mesh was resized."""
        self._slot, self._size = slot, size

    def is_at(self, slot: int, size: int) -> bool:
        """Return whether the checkpoint is of this place: the mesh may have other sizes by now."""
        return (self._slot, self._size) == (slot, size)

    # --- the actor's thread

    def after_call(self, instance: Any, *, failed: bool) -> None:
        """Count a call; save, if it's due. A failed call may have left some ranks a step behind others: that
        isn't a state to restore.
        """
        self.num_calls += 1
        if self.every and self.num_calls % self.every == 0 and not failed:
            self.take_snapshot(instance)

    def prepare(self, instance: Any) -> None:
        """Keep the initial state of a new actor, and allocate the memory for copies, whose first use is
        slow.
        """
        for buffers in self._buffers:
            take_snapshot(instance.state_dict(), self.num_calls, buffers)
        self.take_snapshot(instance)

    def take_snapshot(self, instance: Any) -> None:
        """Copy the state, and have the copy written; waits only if the save before the last one isn't
        complete, since its memory is needed.
        """
        before, self._saving = self._saving, None
        if self._saving_before is not None:
            self._saving_before.join()
        snapshot = take_snapshot(instance.state_dict(), self.num_calls, self._buffers[0])
        self._keep_snapshot(snapshot)
        self._error = None
        self._saving_before = before
        self._saving = threading.Thread(
            target=self._save,
            args=(snapshot, before, self._epochs.get(self._actor_id, 0)),
            name=f"checkpoint-{self._name}",
            daemon=True,
        )
        self._saving.start()

    def _keep_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a copy in memory, and the one before it; later ones are dropped."""
        self._buffers.reverse()
        self._snapshots = [*[s for s in self._snapshots if s.version < snapshot.version][-1:], snapshot]

    def wait(self) -> None:
        """Wait until the pending save is on disk, or has failed."""
        if self._saving is not None:
            self._saving.join()
        self._saving = self._saving_before = None

    def save_now(self, instance: Any) -> str:
        """Save the present state and wait until it's on disk; return the directory.

        Raises:
            CheckpointError: if another rank didn't save the same, or nothing could be written.
        """
        self._asked = True
        try:
            self.take_snapshot(
                instance
            )  # even if this version exists: on new ranks it may not, and all save together
            self.wait()
        finally:
            self._asked = False
        if self._error is not None:
            raise CheckpointError(
                f"checkpoint of actor {self._name!r} after {self.num_calls} calls: {self._error}"
            )
        return self.last_path

    # --- writing, in a thread of its own

    def _save(self, snapshot: Snapshot, before: threading.Thread | None, epoch: int) -> None:
        """Write a copy; `epoch` is the one in which it was taken: a late thread must not save together with
        restored members.
        """
        if before is not None:
            before.join()  # one after the other, on all ranks alike
        path = ""
        try:
            exchange = partial(self._exchange, epoch, snapshot.version)
            path = exchange(CheckpointPhase.BEGIN, None)[0]
            save(snapshot, self._prefix, path, self._slot, exchange)
            self.last_path = exchange(CheckpointPhase.DONE, None)[0]
        except Exception as error:  # kept for the waiting caller; training continues
            self._error = error
            self._tell_failure(error, path, snapshot.version, epoch)

    def _tell_failure(self, error: Exception, path: str, version: int, epoch: int) -> None:
        """Tell the controller that this rank has given up saving, so that the others needn't wait. Returns
        once this checkpoint's files are removed. Where another rank has given up first, they were: then that
        one's reason counts.
        """
        is_gone = bool(path) and not os.path.isdir(path)
        own = "" if isinstance(error, CheckpointError) else _why(error, path)
        if own:
            self._error = CheckpointError(own)
        failed = CheckpointFailed(
            actor_id=self._actor_id,
            version=version,
            epoch=epoch,
            slot=self._slot,
            size=self._size,
            path=path,
            reason=own,
            asked=self._asked,
        )
        with suppress(TransportClosed, RequestFailed):
            reply = self._transport.request(address.CONTROLLER, failed)
            self._transport.reader.wait(reply, None)
            if is_gone and (first := reply.read()):
                self._error = CheckpointError(first)

    @property
    def _prefix(self) -> str:
        return f"rank{self._slot}" if self.kind == CheckpointKind.OWN else "all"

    def _exchange(self, epoch: int, version: int, phase: str, value: Any) -> list[Any]:
        """Exchange a value with all members through the controller; return theirs."""
        member = CheckpointGather(
            actor_id=self._actor_id,
            version=version,
            phase=phase,
            slot=self._slot,
            size=self._size,
            epoch=epoch,
            value=codec.to_bytes(codec.encode(value)),
            directory=self.directory,
            keep=self.keep,
        )
        reply = self._transport.request(address.CONTROLLER, member)
        self._transport.reader.wait(reply, None)
        try:
            found = reply.read()
        except RequestFailed as error:
            raise CheckpointError(str(error)) from None
        return (
            [found.path] if phase in tuple(CheckpointPhase) else [codec.from_bytes(v) for v in found.values]
        )

    # --- restoring

    def versions(self) -> list[int]:
        """Return the versions that are kept in memory."""
        return [s.version for s in self._snapshots]

    def find(self, version: int) -> Snapshot | None:
        """Return a copy from memory."""
        return next((s for s in self._snapshots if s.version == version), None)

    def restore(self, instance: Any, version: int, resume: Resume) -> None:
        """Restore a new instance to a version: from memory here, from a peer's memory, or from disk.

        Raises:
            CheckpointError: if it can't be had.
        """
        self.wait()
        version, state = self._state(instance, version, resume)
        if state is not None:
            instance.load_state_dict(state)
        self.num_calls = version
        self._keep_snapshot(take_snapshot(instance.state_dict(), version, self._buffers[0]))

    def _state(self, instance: Any, version: int, resume: Resume) -> tuple[int, Any]:
        snapshot = self.find(version)
        if (
            snapshot is not None and self.kind != CheckpointKind.SHARDED
        ):  # shards in memory belong to a process group that no longer exists
            return snapshot.version, _fresh(snapshot)
        if resume.peer:
            return version, _fresh(self._ask_peer(resume.peer, version))
        if resume.path:
            found = load(resume.path, self._prefix, instance.state_dict())
            return found if found is not None else (version, None)
        raise CheckpointError(f"version {version} of actor {self._name!r} is neither in memory nor on disk")

    def _ask_peer(self, proc: int, version: int) -> Snapshot:
        body = codec.encode((self._actor_id, version))
        reply = call_one(OneReply(self._transport, (proc,)), proc, calls.SNAPSHOT, body)
        self._transport.reader.wait(reply, None)
        found: Snapshot | None = None
        with suppress(Exception):
            found = (
                reply.body.value() if reply.body is not None and not reply.body.flags & wire.ERROR else None
            )
        if found is None:
            raise CheckpointError(f"version {version} of actor {self._name!r} could not be had from its peer")
        return found


def _why(error: BaseException, path: str) -> str:
    """Return the error that prevents writing: the disk's, if that is the cause; torch wraps system errors."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    if cause is None and path:
        try:
            check_room(os.path.dirname(path))
        except OSError as full:
            cause = full
    return why(cause, path) if isinstance(cause, OSError) else f"{type(error).__name__}: {error}"


def _fresh(snapshot: Snapshot) -> Any:
    """Return the state with tensors of its own, so that the copy stays unchanged."""
    return rebuild(snapshot.skeleton, {path: tensor.clone() for path, tensor in snapshot.tensors.items()})
