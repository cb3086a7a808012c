"""Types of requests to a host about a workspace, and of the answers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from monarch_nb._protocol.base import Request
from monarch_nb._workspace.entry import Entry


class Whereabouts(msgspec.Struct, frozen=True):
    """The identity of a workspace: its folder on the notebook's machine, its name, and marks of that machine.

    Attributes:
        root: its folder on the notebook's machine.
        name: name of its folder on other hosts.
        machine: id of the notebook's machine and file systems: two processes with equal ones see the same
            files.
        token: a file that was just written into it for a moment, and what it holds; ("", "") if none could
            be.
    """

    root: str
    name: str
    machine: str
    token: tuple[str, str] = ("", "")


class Hello(msgspec.Struct, frozen=True):
    """The first answer of a host about a workspace: whether it has the files, and where its copy lies.

    Attributes:
        is_shared: whether it sees the notebook's own files through a shared file system: then nothing is
            sent.
        folder: present or future folder of its copy.
        manifest: id of the last manifest that the copy has completely; "" if none is known.
        free_bytes: free space of the file system.
        hostname: of the machine.
    """

    is_shared: bool
    folder: str
    manifest: str
    free_bytes: int
    hostname: str


class Lacking(msgspec.Struct, frozen=True):
    """The differences between a manifest and a host's copy.

    Attributes:
        contents: contents that the host doesn't have under any name.
        added, changed, deleted: paths.
        theirs: paths of files that were changed on the host: they are kept under another name.
    """

    contents: tuple[str, ...]
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    theirs: tuple[str, ...] = ()


class Outcome(msgspec.Struct, frozen=True):
    """The result of changing a host's copy.

    Attributes:
        added, changed, deleted: paths.
        theirs: (path, where a file that a rank had changed is kept).
        refused: (path, why it isn't in place).
    """

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    theirs: tuple[tuple[str, str], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()


class Edit(msgspec.Struct, frozen=True):
    """A small change from one manifest to another, sent in one message.

    Attributes:
        base: id of the manifest before.
        becomes: id of the manifest after.
        wanted: files that are new or changed.
        gone: paths that are deleted.
        contents: contents of those files, by sha256.
    """

    base: str
    becomes: str
    wanted: tuple[Entry, ...]
    gone: tuple[str, ...]
    contents: Mapping[str, bytes]


# --- requests, to any host process; `name`: of the folder there


class GreetWorkspace(Request[Hello], frozen=True):
    """Say whether the host's machine has the notebook's own files, and what else it has."""

    where: Whereabouts


class TakeContent(Request[None], frozen=True):
    """Take a piece of a content, which is known by its sha256, or by its manifest's id."""

    name: str
    content: str
    offset: int
    data: bytes
    is_last: bool


class TakeContents(Request[None], frozen=True):
    """Take small contents, each complete, identified by their sha256, which the receiver computes."""

    name: str
    contents: tuple[bytes, ...]


class LookAtWorkspace(Request[Lacking], frozen=True):
    """Return the contents in a manifest that this host lacks; the manifest itself was sent as a content."""

    name: str
    manifest: str
    is_dry: bool


class PlaceWorkspace(Request[Outcome], frozen=True):
    """Make the folder equal to a manifest all of whose contents have arrived."""

    name: str
    manifest: str


class EditWorkspace(Request[Outcome | None], frozen=True):
    """Make a few changes to a folder; return None, and do nothing, if the folder isn't in the expected
    state.
    """

    name: str
    edit: Edit


class LinkWorkspace(Request[str], frozen=True):
    """Make a link to the folder at the notebook's path; return why not, or an empty text."""

    name: str
    path: str


class SetElsewhere(Request[None], frozen=True):
    """Remember where folders of the notebook's lie on hosts, by their index: ranks that are started there
    are to know.
    """

    pairs: dict[int, tuple[tuple[str, str], ...]]
