"""Types of requests to a host about a workspace, and of the answers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from monarch_nb._protocol.base import Request
from monarch_nb._workspace.entry import Entry


class Whereabouts(msgspec.Struct, frozen=True):
    """The identity of a workspace: its folder on the notebook's machine, its name, and marks of that machine.

    Attributes:
        root: its folder, as the notebook's machine knows it.
        name: of its folder on other hosts.
        machine: where the notebook runs, and which files it sees: two processes of equal ones see the same.
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
        is_shared: whether it has the notebook's own files, by a shared file system: nothing is to be sent.
        folder: where its copy lies, or will.
        manifest: id of the manifest that the copy has all of; "" if it isn't known to.
        free_bytes: what the file system has room for.
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
        contents: which aren't there under any name.
        added, changed, deleted: paths.
        theirs: paths of files that were changed there: they'll be kept under another name.
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
        theirs: (path, where what a rank had changed there is kept).
        refused: (path, why it isn't in place).
    """

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    theirs: tuple[tuple[str, str], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()


class Edit(msgspec.Struct, frozen=True):
    """A few changes to a folder that has all of one manifest, after which it has another one's.

    Attributes:
        base: id of the manifest that it has.
        becomes: id of the other one.
        wanted: what is new, or holds something else.
        gone: paths.
        contents: what they hold, by sha256.
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
    """Take small contents, all of each; they are known by their sha256, which who takes them finds out."""

    name: str
    contents: tuple[bytes, ...]


class LookAtWorkspace(Request[Lacking], frozen=True):
    """Return the contents that a manifest names and this host lacks; the manifest itself came as a
    content.
    """

    name: str
    manifest: str
    is_dry: bool


class PlaceWorkspace(Request[Outcome], frozen=True):
    """Have the folder be as a manifest says, all of which has come."""

    name: str
    manifest: str


class EditWorkspace(Request[Outcome | None], frozen=True):
    """Make a few changes to a folder; None, and nothing is done, if it isn't as they presume."""

    name: str
    edit: Edit


class LinkWorkspace(Request[str], frozen=True):
    """Make a link to the folder at the notebook's path; answers why not, or nothing."""

    name: str
    path: str


class SetElsewhere(Request[None], frozen=True):
    """Remember where folders of the notebook's lie on hosts, by their index: ranks that are started there
    are to know.
    """

    pairs: dict[int, tuple[tuple[str, str], ...]]
