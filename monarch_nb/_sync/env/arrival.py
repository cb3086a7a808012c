"""Receives an environment on a host without Python. The interpreter sent ahead runs this module, which
communicates with the notebook's machine by standard input and output.

Needs the standard library and the modules of `SHIPPED` only. What is said, in this order:

1. to the host: a line of JSON (`Order`), then the texts of the manifest and of its parts;
2. from it: a line of JSON, what content isn't there, or why the environment can't be;
3. to it: that content, one after the other, in this order, without anything between;
4. from it: a line of JSON, where the environment is, or why it can't be.

Lines from the host begin with `MARK`: what a login shell prints is passed over.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from monarch_nb._sync.env import fits, manifest
from monarch_nb._sync.env.donors import donor_folders, take_from
from monarch_nb._sync.env.errors import EnvironmentSyncError
from monarch_nb._sync.env.manifest import Manifest, Part
from monarch_nb._sync.env.place import Prefix, find_prefix, missing_content, place
from monarch_nb._sync.env.store import Store, WrongContent, default_store

MARK = b"monarch_nb-arrival "
SHIPPED = (
    "_units", "_sync.env", "_sync.env.arrival", "_sync.env.bytecode", "_sync.env.donors", "_sync.env.errors",
    "_sync.env.fits", "_sync.env.manifest", "_sync.env.mounts", "_sync.env.place", "_sync.env.store",
    "_sync.env.suitable", "_sync.env.system_python", "_sync.env.templates",
)  # fmt: skip
"""Modules of this package that this one needs, including itself."""
STANDS_FOR = {
    "__init__.py": "",
    "_sync/__init__.py": "",
    "exceptions.py": "class MeshError(Exception):\n    pass\n",
}
"""Substitutes for modules that need more than the standard library."""
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Order:
    """The order from the notebook's machine to receive an environment.

    Attributes:
        manifest_bytes, part_bytes: lengths of the texts that follow.
        modules: what the environment is tried with.
        link: path at which a link to the environment is made; "" for none.
    """

    manifest_bytes: int
    part_bytes: tuple[int, ...]
    modules: tuple[str, ...] = ()
    link: str = ""

    def line(self) -> bytes:
        """Return the message as a line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"


class Incomplete(EnvironmentSyncError):
    """The error raised when the other side has ended before all data arrived."""


def main(own: str) -> None:
    """Receive one environment.

    Args:
        own: folder of the interpreter that runs this, and of its modules; it's removed.
    """
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    try:
        receive(own, sys.stdin.buffer, answers)
    except Incomplete:  # the sending side knows
        pass
    except (EnvironmentSyncError, OSError) as error:
        with suppress(OSError):
            _answer(answers, {"problem": str(error)})
    finally:
        shutil.rmtree(own, ignore_errors=True)


def receive(own: str, orders: BinaryIO, answers: BinaryIO) -> None:
    """Receive one environment.

    Raises:
        EnvironmentSyncError: if it can't be here.
        Incomplete: if the other side ends in the middle; what has come stays in the store.
    """
    fields = json.loads(orders.readline() or b"null")
    if fields is None:
        raise Incomplete
    order = Order(**{**fields, "part_bytes": tuple(fields["part_bytes"])})
    found = manifest.read_manifest(_exactly(orders, order.manifest_bytes))
    texts = [_exactly(orders, num) for num in order.part_bytes]
    prefix = find_prefix(default_store(), found.id)
    if prefix is not None:
        _answer(answers, {"missing": {}, "was_there": True})
    else:
        prefix = _receive_content(own, order, found, texts, orders, answers)
    if prefix is not None:
        _link(prefix, order.link)
        _answer(answers, {"prefix": prefix.root, "python": prefix.python})


def _receive_content(
    own: str, order: Order, found: Manifest, texts: Sequence[bytes], orders: BinaryIO, answers: BinaryIO
) -> Prefix | None:
    """Make the prefix of the files that are here and those that are sent; None if those sent aren't right."""
    root = default_store()
    if problem := fits.refusal(found.facts, fits.this_machine(_existing(root))):
        raise EnvironmentSyncError(problem)
    store = Store(root)
    try:
        parts = [store.learn(text) for text in texts]
        manifest.check_tree(parts)
        missing = _lacking(own, store, parts)
        warnings = list(fits.warnings(found.facts, fits.this_machine(root)))
        _answer(answers, {"missing": missing, "warnings": warnings})
        if wrong := _take_contents(store, missing, orders):
            _answer(answers, {"wrong": wrong})
            return None
        return place(store, found, lambda prefix: fits.try_prefix(prefix, order.modules))
    finally:
        store.close()


def _lacking(own: str, store: Store, parts: Sequence[Part]) -> dict[str, int]:
    """Return the content that neither the store nor other folders of this host have."""
    missing = missing_content(store, parts)
    for sha256 in take_from(store, parts, missing, [own, *donor_folders(os.environ, ())]):
        del missing[sha256]
    num_files = sum(len(part.entries) for part in parts)
    if problem := fits.no_room(sum(missing.values()), num_files, fits.this_machine(store.root)):
        raise EnvironmentSyncError(problem)
    return missing


def _take_contents(store: Store, missing: Mapping[str, int], orders: BinaryIO) -> list[str]:
    """Take content as it comes; return what isn't what its name says."""
    wrong = []
    for sha256, size in missing.items():
        try:
            store.add(sha256, _blocks(orders, size))
        except WrongContent:
            wrong.append(sha256)
    return wrong


def _blocks(orders: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield content that is on its way."""
    while size:
        block = orders.read(min(_BLOCK_BYTES, size))
        if not block:
            raise Incomplete
        size -= len(block)
        yield block


def _link(prefix: Prefix, path: str) -> None:
    """Make a link to an environment where the notebook has its own, if nothing else is there.

    Raises:
        EnvironmentSyncError: if something is.
    """
    if not path:
        return
    is_ours = os.path.islink(path) and os.readlink(path).startswith(os.path.dirname(prefix.root))
    if os.path.lexists(path) and not is_ours:
        raise EnvironmentSyncError(
            f"{path} is there already, so there is no room for a link: leave --same-path out, and name "
            f"{prefix.python} in the profile (python =)"
        )
    target = os.path.dirname(os.path.dirname(prefix.python))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(target, f"{path}.fresh")
    os.rename(f"{path}.fresh", path)


def _exactly(orders: BinaryIO, num: int) -> bytes:
    found = orders.read(num)
    if len(found) != num:
        raise Incomplete
    return found


def _answer(answers: BinaryIO, fields: Mapping[str, Any]) -> None:
    answers.write(MARK + json.dumps(fields).encode() + b"\n")
    answers.flush()


def _existing(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path
