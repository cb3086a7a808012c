"""A host's store: content by its sha256, and prefixes made of it by hard links.

::

    objects/ab/cdef...    content, 0444, with the pinned time; with an x at its end, 0555: the mode belongs to
    the inode
    parts/ID              canonical text of a part
    envs/ID/              a prefix; complete if envs/ID.manifest is there
    spare/           prefixes linked once more, for their next version (`spare`)
    envs/ID.lock          flock: shared by those who run from the prefix, exclusive while it's made or removed
    tmp/                  what is being written; what is left of a process that has died is removed
    lock                  flock: shared by whoever writes content, exclusive while content that nothing links
        to is removed

One inode is one copy in the page cache for all versions of an environment. A file that is written in place
would change in all of them, and root isn't held off by a mode: so size and time are looked at whenever an
object is linked. The write has changed them.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from monarch_nb._sync.env.bytecode import PINNED_S
from monarch_nb._sync.env.errors import EnvironmentSyncError
from monarch_nb._sync.env.manifest import ManifestError, Part, read_part
from monarch_nb._sync.env.mounts import file_system_of
from monarch_nb._sync.env.suitable import STORE_VARIABLE, lacking, on_network, remove_probes

ID_LENGTH = 16
"""Number of digits of an environment's id in the name of its prefix."""
MODES = {False: 0o444, True: 0o555}
_BLOCK_BYTES = 1 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT}


class WrongContent(EnvironmentSyncError):
    """The error of content that doesn't match its name."""


class StoreFull(EnvironmentSyncError):
    """The error of a store without room for an environment."""


def default_store() -> str:
    """Return where this machine's store is: `$MONARCH_NB_STORE`, else in the user's cache; not on a network's
    file system."""
    given = os.environ.get(STORE_VARIABLE)
    if given:
        return os.path.abspath(os.path.expanduser(given))
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    local = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"monarch_nb-store-{os.getuid()}")
    return local if file_system_of(cache).is_remote else os.path.join(cache, "monarch_nb", "store")


_NAMED_BY = f"{STORE_VARIABLE}=DIRECTORY names another"


class Store:
    """The environment store of one host, created if it doesn't exist.

    Args:
        root: its absolute directory.
        advice: how the user names another directory, for errors.

    Raises:
        EnvironmentSyncError: if it can't be made, is somebody else's, or is on a file system without what it
            needs: hard links, locks, renames.
    """

    def __init__(self, root: str, advice: str = "") -> None:
        self.root = root
        self._tmp = os.path.join(root, "tmp", f"{os.getpid()}-{secrets.token_hex(4)}")
        self._numbers = itertools.count()
        self._parts: dict[str, Part] = {}
        self._locks: list[int] = []
        """Descriptors: nobody cleans the store meanwhile, or removes what this writes."""
        if problem := on_network(root, advice):
            raise EnvironmentSyncError(problem)
        try:
            os.makedirs(root, 0o700, exist_ok=True)
            if os.stat(root).st_uid != os.getuid():
                raise EnvironmentSyncError(f"the store {root} belongs to another user: {advice or _NAMED_BY}")
            for name in ("objects", "parts", "envs", "tmp"):
                os.makedirs(os.path.join(root, name), 0o700, exist_ok=True)
            for i in range(256):
                os.makedirs(os.path.join(root, "objects", f"{i:02x}"), 0o700, exist_ok=True)
            self._locks.append(locked(os.path.join(root, "lock"), fcntl.LOCK_SH))
            self._locks.append(locked(self._tmp + ".lock", fcntl.LOCK_EX))
            os.mkdir(self._tmp, 0o700)  # after the lock: other processes remove unlocked files
            problem = lacking(root, self._tmp, advice)
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
            raise EnvironmentSyncError(
                f"no store can be at {root} ({reason}): expected a directory: {advice or _NAMED_BY}"
            ) from None
        if problem:
            self.close()
            raise EnvironmentSyncError(problem)
        remove_leftovers(root)

    def close(self) -> None:
        """Remove what is unfinished, and let others clean the store."""
        shutil.rmtree(self._tmp, ignore_errors=True)
        with suppress(OSError):
            os.unlink(self._tmp + ".lock")
        fds, self._locks = self._locks, []  # a number that is closed twice may be somebody else's by then
        for fd in fds:
            os.close(fd)

    # --- content

    def object_path(self, sha256: str, *, is_executable: bool = False) -> str:
        """Return where content is, if it's there."""
        return f"{self.root}/objects/{sha256[:2]}/{sha256[2:]}{'x' if is_executable else ''}"

    def has(self, sha256: str, size: int, *, is_executable: bool = False) -> bool:
        """Say whether content is there. What somebody has written to is hashed and, if it's wrong, put
        aside."""
        path = self.object_path(sha256, is_executable=is_executable)
        try:
            info = os.stat(path, follow_symlinks=False)
        except OSError:
            return False
        if info.st_size == size and info.st_mtime == PINNED_S:
            return True
        return self._mend(path, sha256, is_executable)

    def _mend(self, path: str, sha256: str, is_executable: bool) -> bool:
        with suppress(OSError):
            if hash_file(path) == sha256:
                os.chmod(path, MODES[is_executable])
                os.utime(path, (PINNED_S, PINNED_S))
                return True
            os.unlink(path)
        return False

    def add(self, sha256: str, blocks: Iterable[bytes | memoryview], *, is_executable: bool = False) -> None:
        """Take content, if it's what its name says.

        Raises:
            WrongContent: if it isn't.
            StoreFull: if there's no room.
        """
        path = self.new_file()
        digest = hashlib.sha256()
        try:
            with self.writing(path) as fd:
                for block in blocks:
                    digest.update(block)
                    write_all(fd, block)
                if digest.hexdigest() != sha256:
                    raise WrongContent(f"content that should be {sha256[:12]} is {digest.hexdigest()[:12]}")
                os.fchmod(fd, MODES[is_executable])
                os.utime(fd, (PINNED_S, PINNED_S))
            os.rename(path, self.object_path(sha256, is_executable=is_executable))
        except BaseException:
            with suppress(OSError):
                os.unlink(path)
            raise

    def adopt(self, path: str, sha256: str, *, is_executable: bool = False) -> None:
        """Take a file of `new_file` whose content was verified; it appears under its name at once."""
        os.chmod(path, MODES[is_executable])
        os.utime(path, (PINNED_S, PINNED_S))
        os.rename(path, self.object_path(sha256, is_executable=is_executable))

    def copy_mode(self, sha256: str, *, is_executable: bool) -> None:
        """Make content that is there with the other mode available with this one.

        Raises:
            WrongContent: if it isn't what its name says.
        """
        with open(self.object_path(sha256, is_executable=not is_executable), "rb") as file:
            self.add(sha256, iter(lambda: file.read(_BLOCK_BYTES), b""), is_executable=is_executable)

    def read(self, sha256: str) -> bytes:
        """Return content: of a template.

        Raises:
            WrongContent: if it isn't what its name says.
        """
        with open(self.object_path(sha256), "rb") as file:
            content = file.read()
        if hashlib.sha256(content).hexdigest() != sha256:
            raise WrongContent(f"the store's object {sha256[:12]} was changed")
        return content

    # --- files that are being written

    def new_file(self) -> str:
        """Return a path in tmp/ that nothing is at."""
        return f"{self._tmp}/{next(self._numbers)}"

    def new_folder(self) -> str:
        """Make a directory in tmp/."""
        path = self.new_file()
        os.mkdir(path, 0o700)
        return path

    @contextmanager
    def writing(self, path: str) -> Iterator[int]:
        """Give a descriptor of a new file.

        Raises:
            StoreFull: if there's no room for what is written.
        """
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                yield fd
            finally:
                os.close(fd)
        except OSError as error:
            raise full_or(error, self.root) from None

    # --- parts

    def has_part(self, part: str) -> bool:
        """Say whether a part is known."""
        return os.path.exists(f"{self.root}/parts/{part}")

    def learn(self, text: bytes) -> Part:
        """Remember a part.

        Raises:
            ManifestError: if it's malformed, or would lead out of a prefix.
        """
        part = read_part(text)
        self._parts[self.learn_text(text)] = part
        return part

    def learn_text(self, text: bytes) -> str:
        """Remember the canonical text of a part that was checked; return its id."""
        part, path = hashlib.sha256(text).hexdigest(), self.new_file()
        with self.writing(path) as fd:
            write_all(fd, text)
        os.rename(path, f"{self.root}/parts/{part}")
        return part

    def part_text(self, part: str) -> bytes:
        """Return the canonical text of a part that is known.

        Raises:
            ManifestError: if it isn't, or was changed.
        """
        try:
            with open(f"{self.root}/parts/{part}", "rb") as file:
                text = file.read()
        except OSError:
            raise ManifestError(f"the store doesn't know part {part[:12]}") from None
        if hashlib.sha256(text).hexdigest() != part:
            os.unlink(f"{self.root}/parts/{part}")
            raise ManifestError(f"the store's part {part[:12]} was changed")
        return text

    def part(self, part: str) -> Part:
        """Return a part that is known.

        Raises:
            ManifestError: if it isn't, or was changed.
        """
        if part not in self._parts:
            self._parts[part] = read_part(self.part_text(part))
        return self._parts[part]


def read_known(root: str, part: str) -> Part | None:
    """Return a part that the store at `root` knows, without making that store; None if it doesn't, or the
    part was changed.
    """
    with suppress(OSError, ManifestError):
        with open(f"{root}/parts/{part}", "rb") as file:
            found = read_part(file.read())
        return found if found.id == part else None
    return None


def hash_file(path: str) -> str:
    """Return the sha256 of a file's content.

    Raises:
        OSError: if it can't be read.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_all(fd: int, block: bytes | memoryview) -> None:
    """Write a whole block."""
    view = memoryview(block)
    while len(view):
        view = view[os.write(fd, view) :]


def full_or(error: OSError, root: str) -> Exception:
    """Return the exception to raise for an error of writing: that of a full disk, or the error itself."""
    if error.errno not in _FULL:
        return error
    advice = f"monarch-nb sync --gc there frees what nobody uses; {STORE_VARIABLE}=DIRECTORY is another place"
    return StoreFull(f"no room left at {root}: {advice}")


def remove_leftovers(root: str) -> None:
    """Remove from tmp/ what processes that have died have left: their lock is free."""
    folder = os.path.join(root, "tmp")
    for name in os.listdir(folder):
        if name.endswith(".lock"):
            with suppress(OSError):
                fd = locked(f"{folder}/{name}", fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(f"{folder}/{name.removesuffix('.lock')}", ignore_errors=True)
                remove_probes(root, name.removesuffix(".lock"))
                os.unlink(f"{folder}/{name}")
                os.close(fd)


def locked(path: str, how: int) -> int:
    """Open a lock file, made if it isn't there, and lock it; return the descriptor.

    Raises:
        OSError: if that can't be, or, without waiting, somebody else has it.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, how)
            if _is_at(fd, path):  # it wasn't removed since it was opened
                return fd
        except OSError:
            os.close(fd)
            raise
        os.close(fd)


def _is_at(fd: int, path: str) -> bool:
    with suppress(FileNotFoundError):
        return os.fstat(fd).st_ino == os.stat(path).st_ino
    return False
