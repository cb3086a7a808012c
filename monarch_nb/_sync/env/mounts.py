"""Finds the file system of a path in the kernel's mount table (proc(5), `mountinfo`)."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

NETWORK = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs",
     "pvfs2", "wekafs")
)  # fmt: skip
_OCTAL = re.compile(r"\\([0-7]{3})")


class FileSystem(NamedTuple):
    """A mounted file system: its type, and what is mounted (`server:/home`, `/dev/sda1`)."""

    type: str
    source: str

    @property
    def is_remote(self) -> bool:
        """Whether the files of the mount are another machine's."""
        return self.type in NETWORK or self.type.startswith("fuse.")


class Identity(NamedTuple):
    """A directory as the same one seen from elsewhere: equal identities are one directory.

    On a network's file system it's the server's name and the inode's number; on a local one, device and inode
    within one boot of one machine.
    """

    where: str
    inode: int


def file_system_of(path: str) -> FileSystem:
    """Return the file system of a path, or of the nearest directory above that exists."""
    real = os.path.realpath(path)
    while not os.path.exists(real):
        real = os.path.dirname(real)
    best, found = "", FileSystem("", "")
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            point, (kind, source, *_) = _plain(before.split(" ")[4]), after.split(" ")
            if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
                best, found = point, FileSystem(kind, _plain(source))
    return found


def identity_of(path: str) -> Identity | None:
    """Return the identity of a directory; None if it isn't there."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    system = file_system_of(path)
    if system.is_remote:
        return Identity(f"{system.type} {system.source}", info.st_ino)
    return Identity(f"{boot_id()} {info.st_dev}", info.st_ino)


def boot_id() -> str:
    """Return the name of this run of the machine: another one each time it's started."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _plain(text: str) -> str:
    """Return a field of the table without its octal escapes."""
    return _OCTAL.sub(lambda found: chr(int(found.group(1), 8)), text)
