"""Sends a workspace to one host: asks for the missing contents, sends them in pieces, and has them put in
place.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from monarch_nb._client.session import Session
from monarch_nb._client.waiting import wait_simply
from monarch_nb._protocol.base import Request
from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.states import HostState
from monarch_nb._sync.report import HostWorkspace
from monarch_nb._sync.workspace import Scan, Workspace
from monarch_nb._transport.pending import Reply
from monarch_nb._units import size_text
from monarch_nb._wire import address
from monarch_nb._workspace.answers import (
    Edit,
    GreetWorkspace,
    Hello,
    LookAtWorkspace,
    Outcome,
    PlaceWorkspace,
    TakeContent,
    TakeContents,
    Whereabouts,
)
from monarch_nb._workspace.entry import Entry, pack
from monarch_nb.exceptions import MeshError, RequestFailed

T = TypeVar("T")

PIECE_BYTES = 512 << 10
"""Size below which the content of a message doesn't go by shared memory, which a host process doesn't
read.
"""
SMALL_BYTES = 64 << 10
"""Smaller files are sent together."""
_MAX_TOGETHER = 2000
"""Maximum number of these in a message: a host answers other requests between two messages."""
_WINDOW = 32
"""Maximum number of pieces under way to one host: more would only wait there."""
SILENT_S = 60.0
_LOOK_S = 1.0


class HostTrouble(MeshError):
    """The error of a host that couldn't be asked, or couldn't carry out a request; its text says why."""


class FileMoved(Exception):
    """The error of a file that has changed while it was sent."""


class HostRequests:
    """The requests to one host process about one workspace."""

    def __init__(self, session: Session, index: int, workspace: Workspace) -> None:
        self.index = index
        self._session = session
        self._workspace = workspace

    @property
    def name(self) -> str:
        """The name of the workspace's folder on a host."""
        return self._workspace.name

    def ask(self, request: Request[T]) -> Reply[T]:
        """Send a request; `read` returns its answer."""
        return self._session.transport.request(address.host_proc(self.index), request)

    def read(self, reply: Reply[T]) -> T:
        """Wait for an answer while the host lives.

        Raises:
            HostTrouble: if it's lost, doesn't answer, or says that it can't be done.
        """
        limit = time.monotonic() + SILENT_S
        while not wait_simply(reply, time.monotonic() + _LOOK_S):
            self._check_host(limit)
        try:
            return reply.read()
        except RequestFailed as error:
            raise HostTrouble(str(error)) from None

    def get(self, request: Request[T]) -> T:
        """Send a request, and wait for the answer."""
        return self.read(self.ask(request))

    def _check_host(self, limit: float) -> None:
        rows = self._session.request(Status()).hosts
        state = next((row.state for row in rows if row.index == self.index), HostState.LOST)
        if state != HostState.UP:
            raise HostTrouble(
                f"host {self.index} is {state}: what has arrived there stays, and is not sent again. "
                "%mesh heal, then %mesh sync"
            )
        if time.monotonic() > limit:
            raise HostTrouble(
                f"host {self.index} has not answered for {SILENT_S:g} s: does its disk hang? See %mesh doctor"
            )


def greet(requests: HostRequests, where: Whereabouts) -> Hello:
    """Return a host's record of a workspace."""
    return requests.get(GreetWorkspace(where))


def bring(
    requests: HostRequests, workspace: Workspace, scan: Scan, hello: Hello, *, is_dry: bool
) -> HostWorkspace:
    """Send everything to a host that it lacks of a workspace.

    Raises:
        HostTrouble: if it can't be.
        FileMoved: if a file changed meanwhile.
    """
    sending = _Sending(requests)
    sending.send(scan.id, iter([pack(scan.manifest)]))
    sending.wait()
    lacking = requests.get(LookAtWorkspace(requests.name, scan.id, is_dry))
    entries = {entry.content: entry for entry in scan.manifest.values() if not entry.is_link}
    wanted = [entries[content] for content in lacking.contents]
    num_bytes = sum(entry.size for entry in wanted)
    found = HostWorkspace(hello.hostname, hello.folder, num_files=len(wanted), sent_bytes=num_bytes)
    if is_dry:
        kept = tuple((path, f"{path}.theirs") for path in lacking.theirs)
        return replace(found, outcome=Outcome(lacking.added, lacking.changed, lacking.deleted, kept))
    _check_room(hello, num_bytes)
    for entry in wanted:
        if entry.size > SMALL_BYTES:
            sending.send(entry.content, _pieces(workspace, entry))
    for batch in _batches([entry for entry in wanted if entry.size <= SMALL_BYTES]):
        sending.send_all([b"".join(_pieces(workspace, entry)) for entry in batch])
    sending.wait()
    outcome = requests.get(PlaceWorkspace(requests.name, scan.id))
    return replace(found, outcome=outcome)


def _check_room(hello: Hello, num_bytes: int) -> None:
    if num_bytes > hello.free_bytes:
        raise HostTrouble(
            f"host {hello.hostname} has no room: {size_text(num_bytes)} are needed at {hello.folder}, "
            f"{size_text(hello.free_bytes)} are free. Make room there, or start its host process with "
            "MONARCH_NB_STORE=FOLDER; nothing there has changed"
        )


class _Sending:
    """The sending of contents to a host: a window of pieces at a time, also across files."""

    def __init__(self, requests: HostRequests) -> None:
        self._requests = requests
        self._under_way: deque[Reply[None]] = deque()

    def send(self, content: str, pieces: Iterator[bytes]) -> None:
        """Send a content in pieces."""
        offset, data = 0, next(pieces, b"")
        while True:
            after = next(pieces, None) if len(data) <= PIECE_BYTES else data[PIECE_BYTES:]
            data = data[:PIECE_BYTES]
            name = self._requests.name
            self._under_way.append(
                self._requests.ask(TakeContent(name, content, offset, data, after is None))
            )
            if after is None:
                break
            offset, data = offset + len(data), after
            self.wait(_WINDOW)
        self.wait(_WINDOW)

    def send_all(self, contents: Sequence[bytes]) -> None:
        """Send small contents in one message."""
        self._under_way.append(self._requests.ask(TakeContents(self._requests.name, tuple(contents))))
        self.wait(_WINDOW)

    def wait(self, num: int = 0) -> None:
        """Wait until at most a given number of pieces are under way."""
        while len(self._under_way) > num:
            self._requests.read(self._under_way.popleft())


def _batches(files: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Group files into batches of one message each."""
    batch: list[Entry] = []
    num_bytes = 0
    for entry in files:
        if batch and (num_bytes + entry.size > PIECE_BYTES or len(batch) == _MAX_TOGETHER):
            yield batch
            batch, num_bytes = [], 0
        batch.append(entry)
        num_bytes += entry.size
    if batch:
        yield batch


def _pieces(workspace: Workspace, entry: Entry) -> Iterator[bytes]:
    """Yield the content of a file in pieces, unless the file has changed since the scan.

    Raises:
        FileMoved: if it isn't.
    """
    hashed = hashlib.sha256()
    try:
        with open(os.path.join(workspace.folder, entry.path), "rb", buffering=0) as file:
            before = b""
            while data := file.read(PIECE_BYTES):
                if before:
                    yield before
                hashed.update(data)
                before = data
    except OSError as error:
        raise FileMoved(entry.path) from error
    if hashed.hexdigest() != entry.content:
        raise FileMoved(entry.path)
    yield before


def edit_between(workspace: Workspace, before: Scan, now: Scan) -> Edit | None:
    """Return the edit that turns one scan of a workspace into another on a host; None if it's too much for
    one message.

    Raises:
        FileMoved: if a file changed meanwhile.
    """
    wanted = tuple(entry for path, entry in now.manifest.items() if before.manifest.get(path) != entry)
    gone = tuple(path for path in before.manifest if path not in now.manifest)
    files = [entry for entry in wanted if not entry.is_link]
    if sum(entry.size + 200 for entry in wanted) + 200 * len(gone) > PIECE_BYTES:
        return None
    return Edit(
        before.id,
        now.id,
        wanted,
        gone,
        {entry.content: b"".join(_pieces(workspace, entry)) for entry in files},
    )
