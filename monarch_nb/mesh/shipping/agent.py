"""The agent of a host: a process in a group of its own, which isn't counted as a rank. It runs nothing that
it receives but the test of a prefix.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monarch_nb._sync.env import manifest as manifests
from monarch_nb._sync.env.donors import donor_folders, found_in, take_from
from monarch_nb._sync.env.errors import EnvironmentSyncError
from monarch_nb._sync.env.fits import no_room, refusal, this_machine, try_prefix, warnings
from monarch_nb._sync.env.installed import installed
from monarch_nb._sync.env.interpreter import this_interpreter
from monarch_nb._sync.env.layers import find_layers
from monarch_nb._sync.env.mounts import Identity, identity_of
from monarch_nb._sync.env.package_index import FromIndex, take_from_index
from monarch_nb._sync.env.packages import PackageDigest
from monarch_nb._sync.env.place import Prefix, absent_content, find_prefix, missing_content, place, settle
from monarch_nb._sync.env.spare import make_spare, place_changed
from monarch_nb._sync.env.store import Store, default_store, read_known
from monarch_nb._sync.env.suitable import on_network
from monarch_nb.actor import Actor, concurrent_endpoint, endpoint
from monarch_nb.mesh.shipping.packs import PACK_BYTES, Pack
from monarch_nb.mesh.shipping.receiving import Receiver
from monarch_nb.rdma import RDMABuffer, empty


@dataclass(frozen=True)
class Survey:
    """The findings on a host, before an environment is sent there.

    Attributes:
        hostname: of the host.
        store: where its store is.
        store_id: equal on hosts that have one store together.
        prefix: of this environment, if it's there already.
        unknown: ids of parts that the host has never heard of.
        is_shared: whether the host sees the notebook's own files.
        refusal: why the environment can't run there; "" if it can.
        warnings: restrictions of the environment there.
    """

    hostname: str
    store: str
    store_id: tuple[str, Identity | None]
    prefix: Prefix | None
    unknown: tuple[str, ...]
    is_shared: bool
    refusal: str
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Lack:
    """The content that a host lacks.

    Attributes:
        sizes: by content, its size in bytes.
        found_bytes: bytes that were found on the host outside its store, and copied from there.
        index_bytes: bytes that came from the host's package index.
        index_problem: why a distribution couldn't be had from there; "" if all could.
        refusal: why the host has no room for it; "" if it has.
    """

    sizes: Mapping[str, int]
    refusal: str
    found_bytes: int = 0
    index_bytes: int = 0
    index_problem: str = ""


@dataclass(frozen=True)
class Taken:
    """The result of fetching a pack to a host.

    Attributes:
        wrong: contents that don't match their names.
        problem: why it couldn't be fetched; "" if it could.
    """

    wrong: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class EnvironmentChange:
    """The way from one environment to another.

    Attributes:
        before: id of the one.
        changes: by part of it, files that are otherwise.
        contents: by sha256, content that may be new.
    """

    before: str
    changes: Mapping[str, tuple[manifests.Change, ...]]
    contents: Mapping[str, bytes] = field(repr=False)


class SyncAgent(Actor):
    """The actor that works on a host's store for the program that has spawned it."""

    def __init__(self) -> None:
        self._store: Store | None = None
        self._manifest: manifests.Manifest | None = None
        self._receiver: Receiver | None = None
        self._memories: list[memoryview] = []
        self._buffers: list[RDMABuffer] = []
        self._keepers: list[Any] = []

    @endpoint
    def survey(self, text: bytes, roots: Mapping[str, Identity | None]) -> Survey:
        """Return the facts about this host; nothing is written.

        Args:
            text: of the manifest.
            roots: identities of the notebook's layers, by their paths.
        """
        found = self._manifest = manifests.read_manifest(text)
        root = default_store()
        existing = _existing(root)
        machine = this_machine(existing)
        unknown = tuple(p.id for p in found.parts if not os.path.exists(f"{root}/parts/{p.id}"))
        prefix = find_prefix(root, found.id)
        is_shared = all(there is not None and identity_of(path) == there for path, there in roots.items())
        return Survey(
            os.uname().nodename, root, (root, identity_of(existing)),
            prefix, unknown, is_shared,
            on_network(root) or refusal(found.facts, machine), tuple(warnings(found.facts, machine)),
        )  # fmt: skip

    @endpoint
    def packages(self) -> dict[str, PackageDigest]:
        """Return the packages of the environment of this host's ranks; nothing is written."""
        return installed(find_layers(this_interpreter()))

    @endpoint
    def lacking(self, texts: Sequence[bytes], donors: bool) -> dict[str, int]:
        """Return the contents of the environment that aren't here: size by sha256; nothing is written.

        Args:
            texts: of parts that the host doesn't know.
            donors: whether what other folders of the host have counts.
        """
        root = default_store()
        known = {part.id: part for part in map(manifests.read_part, texts)}
        found = self._manifest.parts if self._manifest is not None else ()
        every = [known.get(each.id) or read_known(root, each.id) for each in found]
        parts = [part for part in every if part is not None]
        absent = absent_content(root, parts)
        for sha256 in found_in(parts, absent, _donors()) if donors else ():
            del absent[sha256]
        return absent

    @endpoint
    def learn(self, texts: Sequence[bytes], donors: bool) -> Lack:
        """Store parts; return the missing contents of the environment.

        Args:
            donors: whether to copy what other folders of this host have to the store.
        """
        store, found = self._opened()
        for text in texts:
            store.learn(text)
        parts = [store.part(part.id) for part in found.parts]
        manifests.check_tree(parts)
        sizes = missing_content(store, parts)
        there = take_from(store, parts, sizes, _donors()) if donors else {}
        for sha256 in there:
            del sizes[sha256]
        self._receiver = Receiver(store, _modes(parts))
        num_files = sum(len(part.entries) for part in parts)
        refused = no_room(sum(sizes.values()), num_files, this_machine(store.root))
        return Lack(sizes, refused, sum(there.values()))

    @endpoint
    def take_from_index(self, limit_s: float) -> FromIndex:
        """Copy missing content from this host's package index to the store, as far as it comes in time."""
        store, found = self._opened()
        parts = [store.part(part.id) for part in found.parts]
        return take_from_index(store, parts, missing_content(store, parts), found.facts["python"], limit_s)

    @endpoint
    def make_room(self, num: int) -> list[RDMABuffer]:
        """Return buffers for packs, that other agents may read from, too."""
        while len(self._buffers) < num:
            memory = empty((PACK_BYTES,), dtype="uint8")
            self._keepers.append(memory)
            self._memories.append(bytes_of(memory))
            self._buffers.append(RDMABuffer(memory))
        return self._buffers[:num]

    @concurrent_endpoint
    async def fetch_pack(self, slot: int, pack: Pack, holder: RDMABuffer, sums: Sequence[int]) -> Taken:
        """Fetch a pack from a holder into a local buffer, and put it into the store, verified: of several
        slots at once, for hashing and writing let go of the interpreter's lock.
        """
        return await asyncio.to_thread(self.take_pack, slot, pack, holder, sums)

    def take_pack(self, slot: int, pack: Pack, holder: RDMABuffer, sums: Sequence[int]) -> Taken:
        """Do the work of `fetch_pack`, in the caller's thread."""
        memory = self._memories[slot]
        try:
            holder.read_into(memory).get()
        except Exception as error:  # whatever has happened to the holder
            return Taken(problem=f"{type(error).__name__}: {error}".splitlines()[0])
        assert self._receiver is not None
        return Taken(tuple(self._receiver.take_pack(pack, memory, sums)))

    @endpoint
    def place(self, modules: Sequence[str]) -> Prefix:
        """Make the prefix from the received content, and try it."""
        store, found = self._opened()
        return place(store, found, lambda prefix: try_prefix(prefix, modules))

    @endpoint
    def place_changed(self, text: bytes, change: EnvironmentChange, modules: Sequence[str]) -> Prefix | None:
        """Make the prefix of an environment of the spare of another one, and try it; None if there's none.

        Args:
            text: of the manifest.
        """
        self._manifest = manifests.read_manifest(text)
        store, found = self._opened()
        modes = _modes_of(entry for several in change.changes.values() for _, entry in several if entry)
        for sha256, content in change.contents.items():
            for is_executable in modes.get(sha256, frozenset((False,))):
                store.add(sha256, [content], is_executable=is_executable)
        return place_changed(
            store, found, change.before, change.changes, lambda prefix: try_prefix(prefix, modules)
        )

    @endpoint
    def make_spare(self, environment: str) -> None:
        """Have a prefix on the disk, and make what its next version will be made of."""
        store = Store(default_store())
        try:
            settle(store, environment)
            make_spare(store, environment)
        finally:
            store.close()

    @endpoint
    def close(self) -> None:
        """Remove unfinished files."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def _opened(self) -> tuple[Store, manifests.Manifest]:
        if self._manifest is None:
            raise EnvironmentSyncError("this agent has not been asked what is here: survey() comes first")
        if self._store is None:
            self._store = Store(default_store())
        return self._store, self._manifest


def _donors() -> list[str]:
    """Return folders of this host that may have content: the environment of this process, and caches."""
    return donor_folders(os.environ, (sys.prefix, sys.base_prefix))


def _modes(parts: Sequence[manifests.Part]) -> dict[str, frozenset[bool]]:
    return _modes_of(entry for part in parts for entry in part.entries)


def _modes_of(entries: Iterable[manifests.Entry]) -> dict[str, frozenset[bool]]:
    modes: dict[str, set[bool]] = {}
    for entry in entries:
        if entry.kind != manifests.LINK:
            modes.setdefault(entry.content, set()).add(entry.kind == manifests.EXECUTABLE)
    return {content: frozenset(found) for content, found in modes.items()}


def bytes_of(memory: Any) -> memoryview:
    """Return an array's or a tensor's memory."""
    return memoryview(memory.numpy() if hasattr(memory, "numpy") else memory).cast("B")


def _existing(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path
