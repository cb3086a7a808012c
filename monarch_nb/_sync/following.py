"""The workspaces of this program on the hosts of one mesh: which version each host has, and whether it is
current.
"""

from __future__ import annotations

import os
import secrets
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import msgspec
from msgspec import structs

from monarch_nb._client.session import Session
from monarch_nb._protocol.programs import Status
from monarch_nb._sync.hosts import FileMoved, HostRequests, HostTrouble, bring, edit_between, greet
from monarch_nb._sync.ignore import MARK
from monarch_nb._sync.report import HostWorkspace, WorkspaceReceipt
from monarch_nb._sync.workspace import Scan, Workspace, not_covered, root_of
from monarch_nb._wire.process import files_id
from monarch_nb._workspace.answers import EditWorkspace, Hello, LinkWorkspace, SetElsewhere, Whereabouts
from monarch_nb.exceptions import MeshUsageError

_MAX_THREADS = 8
_NUM_TRIES = 5
"""How often a workspace is scanned again when its files change while they are sent."""

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class SyncOptions:
    """The options of a sync of workspaces to hosts.

    Attributes:
        include, exclude: patterns as in a .gitignore; they hold for later syncs, too.
        is_dry: only say what would be sent.
        same_path: make a link at the notebook's path on each host.
        force: whether to send a workspace of any size.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    is_dry: bool = False
    same_path: bool = False
    force: bool = False


class Copy(msgspec.Struct):
    """A workspace on one host.

    Attributes:
        scan: the last scan that it has completely, as far as is known.
        generation: which host process at that place was asked; the next one may run on another machine.
    """

    folder: str
    hostname: str
    is_shared: bool = False
    scan: Scan | None = None
    generation: int = 0


class Followed:
    """One workspace, with its copies by host. Used by one thread at a time."""

    def __init__(self, session: Session, workspace: Workspace) -> None:
        self._session = session
        self.workspace = workspace
        self.copies: dict[int, Copy] = {}
        self._options = SyncOptions()
        """Options of the last sync."""
        self._reported = ""
        """Id of the scan that was reported as missing on hosts."""

    def bring(self, hosts: Sequence[int], options: SyncOptions) -> WorkspaceReceipt:
        """Send all files to hosts; ask first what each of them has.

        Raises:
            MeshUsageError: if the workspace can't be meant.
        """
        start = time.monotonic()
        generations = generations_of(self._session)
        hellos, troubles = self.greet(hosts)
        found = {index: HostWorkspace("", trouble=text) for index, text in troubles.items()}
        for index, hello in hellos.items():
            generation = generations.get(index, 0)
            self.copies[index] = Copy(hello.folder, hello.hostname, hello.is_shared, generation=generation)
        if not options.is_dry:
            self._options = replace(options, include=(), exclude=())
        found |= {
            index: HostWorkspace(h.hostname, h.folder, is_shared=True)
            for index, h in hellos.items()
            if h.is_shared
        }
        apart = {index: hello for index, hello in hellos.items() if not hello.is_shared}
        if not apart:
            return self._receipt(found, None, start, options.is_dry)
        look = partial(self.workspace.scan, force=options.force)
        scan, brought = self._unmoved(look, lambda scan: self._bring_all(apart, scan, options))
        return self._receipt(dict(sorted((found | brought).items())), scan, start, options.is_dry)

    def bring_to_newcomers(self, generations: Mapping[int, int]) -> WorkspaceReceipt | None:
        """Send all files to hosts that have joined since the last sync; None if there are none.

        Args:
            generations: of the hosts that are to have them, by index.
        """
        known = {index: copy.generation for index, copy in self.copies.items()}
        new = [index for index, generation in generations.items() if known.get(index) != generation]
        return self.bring(new, self._options) if new else None

    def forget(self, hosts: Collection[int]) -> None:
        """Drop hosts that have left."""
        self.copies = {index: copy for index, copy in self.copies.items() if index not in hosts}

    def bring_changes(self) -> WorkspaceReceipt | None:
        """Send the changes since the last sync to hosts; None if there are none."""
        start = time.monotonic()
        if not self.is_stale():
            return None
        scan, found = self._unmoved(self.workspace.current, partial(self._edit_all, self._apart()))
        return self._receipt(found, scan, start, False)

    def is_stale(self) -> bool:
        """Say whether a host may lack a file; costs microseconds if nothing has changed."""
        apart = self._apart()
        if not apart:
            return False
        now = self.workspace.current()
        return any(copy.scan is None or copy.scan.id != now.id for copy in apart.values())

    def what_is_new(self) -> str:
        """Describe the files that hosts lack or have in another version."""
        paths = self._changed_paths()
        names = ", ".join(paths[:3]) + (f" and {len(paths) - 3:,} more" if len(paths) > 3 else "")
        return (
            f"{names or self.workspace.folder} ha{'s' if len(paths) < 2 else 've'} changed here since the "
            f"other hosts were sent {'it' if len(paths) < 2 else 'them'}"
        )

    def is_unreported(self) -> bool:
        """Say whether this is the first call for the present files."""
        now = self.workspace.current().id
        is_new, self._reported = now != self._reported, now
        return is_new

    def _changed_paths(self) -> list[str]:
        now = self.workspace.last
        scans = [copy.scan for copy in self._apart().values()]
        if now is None:
            return []
        olds = [scan.manifest if scan is not None else {} for scan in scans]
        paths = {
            path
            for old in olds
            for path in {**old, **now.manifest}
            if old.get(path) != now.manifest.get(path)
        }
        return sorted(paths)

    def pairs(self, index: int) -> Pairs:
        """Return pairs of the workspace's paths: here, and on a host; nothing if they're the same."""
        copy = self.copies.get(index)
        return () if copy is None or copy.is_shared else self.workspace.pairs(copy.folder)

    def _apart(self) -> dict[int, Copy]:
        return {index: copy for index, copy in self.copies.items() if not copy.is_shared}

    def _unmoved(
        self, look: Callable[[], Scan], do: Callable[[Scan], dict[int, HostWorkspace]]
    ) -> tuple[Scan, dict[int, HostWorkspace]]:
        """Run a function on a scan of all files; scan again if they change meanwhile."""
        for _ in range(_NUM_TRIES):
            scan = look()
            try:
                return scan, do(scan)
            except FileMoved as error:
                moved = str(error)
        raise MeshUsageError(
            f"sync: {moved} changes all the time while it's sent. Leave it out: %mesh sync --exclude "
            f"{moved!r}"
        )

    # --- hosts

    def _requests(self, index: int) -> HostRequests:
        return HostRequests(self._session, index, self.workspace)

    def greet(self, hosts: Sequence[int]) -> tuple[dict[int, Hello], dict[int, str]]:
        """Return the hosts' records of the workspace, and the errors of hosts that couldn't be asked."""
        where = Whereabouts(self.workspace.folder, self.workspace.name, files_id())
        hellos, troubles = self._ask_all(hosts, where)
        others = [index for index, hello in hellos.items() if not hello.is_shared]
        if others:
            with _token(self.workspace.folder) as token:
                again, more = self._ask_all(others, structs.replace(where, token=token))
            hellos, troubles = {i: h for i, h in (hellos | again).items() if i not in more}, troubles | more
        return hellos, troubles

    def _ask_all(self, hosts: Sequence[int], where: Whereabouts) -> tuple[dict[int, Hello], dict[int, str]]:
        hellos: dict[int, Hello] = {}
        troubles: dict[int, str] = {}
        for index, ask in [(i, partial(greet, self._requests(i), where)) for i in hosts]:
            try:
                hellos[index] = ask()
            except HostTrouble as error:
                troubles[index] = str(error)
        return hellos, troubles

    def _bring_all(
        self, hellos: dict[int, Hello], scan: Scan, options: SyncOptions
    ) -> dict[int, HostWorkspace]:
        def one(index: int) -> HostWorkspace:
            hello = hellos[index]
            try:
                found = bring(self._requests(index), self.workspace, scan, hello, is_dry=options.is_dry)
                return self._linked(index, found) if options.same_path and not options.is_dry else found
            except HostTrouble as error:
                return HostWorkspace(hello.hostname, hello.folder, trouble=str(error))

        if len(hellos) == 1:
            found = {index: one(index) for index in hellos}
        else:
            with ThreadPoolExecutor(min(_MAX_THREADS, len(hellos)), "mnb-sync") as pool:
                found = dict(zip(hellos, pool.map(one, hellos), strict=True))
        if not options.is_dry:
            self._took(found, scan)
        return found

    def _linked(self, index: int, found: HostWorkspace) -> HostWorkspace:
        requests = self._requests(index)
        trouble = requests.get(LinkWorkspace(requests.name, self.workspace.folder))
        return replace(found, link=trouble)

    def _edit_all(self, apart: dict[int, Copy], scan: Scan) -> dict[int, HostWorkspace]:
        """Send changed files in one message each, to hosts whose files are known; to others, the files they
        lack.
        """
        asked = []
        for index, copy in apart.items():
            if copy.scan is None or copy.scan.id == scan.id:
                continue
            edit = edit_between(self.workspace, copy.scan, scan)
            if edit is not None:
                requests = self._requests(index)
                asked.append((index, requests, edit, requests.ask(EditWorkspace(requests.name, edit))))
        found: dict[int, HostWorkspace] = {}
        for index, requests, edit, reply in asked:
            num_bytes = sum(map(len, edit.contents.values()))
            try:
                outcome = requests.read(reply)
            except HostTrouble as error:
                found[index] = HostWorkspace(apart[index].hostname, trouble=str(error))
                continue
            if outcome is not None:
                copy = apart[index]
                found[index] = HostWorkspace(
                    copy.hostname, copy.folder, False, outcome, len(edit.contents), num_bytes
                )
        self._took(found, scan)
        behind = [
            i
            for i, copy in apart.items()
            if i not in found and (copy.scan is None or copy.scan.id != scan.id)
        ]
        if behind:
            hellos, troubles = self.greet(behind)
            found |= {index: HostWorkspace("", trouble=text) for index, text in troubles.items()}
            found |= self._bring_all(hellos, scan, SyncOptions()) if hellos else {}
        return found

    def _took(self, found: dict[int, HostWorkspace], scan: Scan) -> None:
        for index, each in found.items():
            self.copies[index].scan = scan if each.is_done else None

    def _receipt(
        self, found: dict[int, HostWorkspace], scan: Scan | None, start: float, is_dry: bool
    ) -> WorkspaceReceipt:
        if scan is None:
            return WorkspaceReceipt(self.workspace.folder, found, 0, 0, is_dry=is_dry)
        return WorkspaceReceipt(
            self.workspace.folder,
            found,
            len(scan.manifest),
            scan.num_bytes,
            scan.left_out,
            seconds=time.monotonic() - start,
            is_dry=is_dry,
        )


class Workspaces:
    """All workspaces of this program that hosts of one mesh have copies of."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._followed: dict[str, Followed] = {}

    def bring(
        self, hosts: Sequence[int], paths: Sequence[str], options: SyncOptions
    ) -> tuple[WorkspaceReceipt, ...]:
        """Send the workspace to hosts, with further workspaces that were named.

        Args:
            hosts: indices, without the controller's.
            paths: absolute; a folder that lies in no workspace yet becomes one.

        Raises:
            MeshUsageError: if one can't be meant.
        """
        chosen = self._chosen(paths, options)
        receipts = [followed.bring(hosts, options) for followed in chosen]
        if not options.is_dry:
            for followed in chosen:
                self._followed[followed.workspace.folder] = followed
            self._tell_controller(hosts)
        others = not_covered([each.workspace for each in (*chosen, *self._followed.values())])
        if receipts and any(not host.is_shared for host in receipts[-1].hosts.values()):
            receipts[-1] = replace(receipts[-1], not_covered=others)
        return tuple(receipts)

    def bring_to_newcomers(self, generations: Mapping[int, int]) -> tuple[WorkspaceReceipt, ...]:
        """Send the workspaces that other hosts have to hosts that have joined since.

        Args:
            generations: of the hosts that are to have it, by index; without the controller's.

        Raises:
            MeshUsageError: if a workspace can't be meant any more.
        """
        followed = [each for each in self._followed.values() if each.copies]
        receipts = [each.bring_to_newcomers(generations) for each in followed]
        self._tell_controller(list(generations))
        return tuple(receipt for receipt in receipts if receipt is not None)

    def forget(self, hosts: Collection[int]) -> None:
        """Drop hosts that have left."""
        for each in self._followed.values():
            each.forget(hosts)

    def pairs(self, index: int) -> Pairs:
        """Return the paths of this program's folders on a host."""
        return tuple(pair for followed in self._followed.values() for pair in followed.pairs(index))

    def stale(self) -> list[Followed]:
        """Return the workspaces of which a host may lack a part."""
        return [followed for followed in self._followed.values() if followed.is_stale()]

    def is_shared_by_all(self) -> bool:
        """Say whether all hosts have this machine's own files, as far as is known."""
        copies = [copy for followed in self._followed.values() for copy in followed.copies.values()]
        return bool(copies) and all(copy.is_shared for copy in copies)

    def is_elsewhere(self, path: str) -> bool:
        """Say whether a path of this machine has another location on some host."""
        return not self.is_shared_by_all() and any(
            each.workspace.has(path) for each in self._followed.values()
        )

    def _chosen(self, paths: Sequence[str], options: SyncOptions) -> list[Followed]:
        if not paths and self._followed:
            folders = list(self._followed)
        else:
            folders = [self._folder_of(path) for path in paths] or [root_of(os.getcwd())]
        return [self._follow(folder, options) for folder in dict.fromkeys(folders)]

    def _folder_of(self, path: str) -> str:
        """Return the workspace that contains a path; a new one if there is none."""
        real = os.path.realpath(path)
        known = next(
            (each.workspace.folder for each in self._followed.values() if each.workspace.has(real)), None
        )
        return known or (real if os.path.isdir(real) else root_of(real))

    def _follow(self, folder: str, options: SyncOptions) -> Followed:
        known = self._followed.get(folder)
        if known is not None and not options.include and not options.exclude:
            return known
        if known is not None and not options.is_dry:
            known.workspace.include += options.include
            known.workspace.exclude += options.exclude
            return known
        return Followed(self._session, Workspace(folder, options.include, options.exclude))

    def _tell_controller(self, hosts: Sequence[int]) -> None:
        """Tell the controller the paths of folders on hosts, for ranks that are started from now on."""
        pairs = {index: self.pairs(index) for index in hosts if self.pairs(index)}
        if pairs:
            self._session.request(SetElsewhere(pairs))


def generations_of(session: Session) -> dict[int, int]:
    """Return the generation of each host's process, by index: it changes when a lost one is replaced."""
    return {row.index: row.generation for row in session.request(Status()).hosts}


_of_sessions: weakref.WeakKeyDictionary[Session, Workspaces] = weakref.WeakKeyDictionary()


def workspaces_of(session: Session) -> Workspaces:
    """Return the workspaces that this program has brought to hosts of a mesh."""
    return _of_sessions.setdefault(session, Workspaces(session))


def known_workspaces(session: Session) -> Workspaces | None:
    """Return this program's workspaces, if there are any."""
    return _of_sessions.get(session)


def copies_behind(session: Session, path: str, hosts: Sequence[int]) -> tuple[str, list[int]]:
    """Return the workspace that contains a path, and the hosts with an outdated copy of it. Hosts without a
    copy, or with the files themselves, aren't among them.
    """
    followed = Followed(session, Workspace(root_of(path)))
    hellos, _ = followed.greet(hosts)
    copied = {index: hello for index, hello in hellos.items() if hello.manifest and not hello.is_shared}
    try:
        now = followed.workspace.scan().id if copied else ""
    except MeshUsageError:  # too large to be intended
        return followed.workspace.folder, []
    finally:
        followed.workspace.close()
    return followed.workspace.folder, [index for index, hello in copied.items() if hello.manifest != now]


@contextmanager
def _token(folder: str) -> Iterator[tuple[str, str]]:
    """Write a random number into a folder for a moment: a process that can read it there sees the same
    files.
    """
    name, holds = f"{MARK}{secrets.token_hex(8)}", secrets.token_hex(16)
    path = os.path.join(folder, name)
    try:
        with open(path, "x", encoding="ascii") as file:
            file.write(holds)
    except OSError:
        yield "", ""
        return
    try:
        yield name, holds
    finally:
        os.unlink(path)
