"""Files that contain a prefix's path: the path is replaced by a placeholder here, and by another prefix's
path there. Pure.

A template is a line of JSON, then the file without the paths. There are two sorts:

- text: `cuts` says where a layer's path stood. What is put in may be of any length.
- binary, of conda: the package's own file, with the placeholder in it that conda-build left. A C string that
  has it is filled up with
  NULs to the length that it had, so that all that follows stays where it is: what is put in must not be
      longer than the placeholder.

Both are the same whatever prefix they were made of: `fill(cut(x, roots), roots) == x`, and `cut` of two
prefixes of one package are equal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monarch_nb._sync.env.errors import EnvironmentSyncError

MAX_SHEBANG_BYTES = 127
"""Linux reads only this part of a script's first line (`BINPRM_BUF_SIZE`), including `#!` and without the
newline.
"""
_MAGIC = b"mnb template 1 "
_ENDS = rb"(?![A-Za-z0-9_.+~-])"
"""Pattern after a prefix's path, so that `/opt/env2` doesn't count as below `/opt/env`."""
_SHEBANG = re.compile(rb"#!([^\n]*)\n?")


class TemplateError(EnvironmentSyncError):
    """The error of a file that can't be adapted to another prefix."""


def cut_text(content: bytes, roots: Mapping[str, str]) -> bytes | None:
    """Return the template of a text; None if it has no layer's path in it.

    Args:
        roots: by layer, its absolute directory.

    >>> template = cut_text(b"home = /opt/py/bin", {"base": "/opt/py"})
    >>> fill(template, {"base": "/store/x/base"})
    b'home = /store/x/base/bin'
    """
    by_path = {root.encode("utf-8", "surrogateescape"): layer for layer, root in roots.items()}
    pattern = re.compile(
        b"(?:%s)%s" % (b"|".join(map(re.escape, sorted(by_path, key=len, reverse=True))), _ENDS)
    )
    cuts: list[tuple[int, str]] = []
    pieces, at, length = [], 0, 0
    for found in pattern.finditer(content) if by_path else ():
        pieces.append(content[at : found.start()])
        length += found.start() - at
        cuts.append((length, by_path[found.group()]))
        at = found.end()
    if not cuts:
        return None
    return _pack({"cuts": cuts}, b"".join([*pieces, content[at:]]))


def cut_binary(content: bytes, layer: str, root: str, placeholder: str) -> bytes | None:
    """Return the template of a binary file of a conda package; None if the prefix isn't in it.

    Args:
        root: of the prefix that the package is installed in.
        placeholder: what stood there in the package.
    """
    old, new = root.encode(), placeholder.encode()
    if old not in content or len(old) > len(new):
        return None

    def restore(string: bytes, room: int) -> bytes | None:
        whole = string.replace(old, new)
        return whole.ljust(room, b"\0") if len(whole) < room else None

    restored = _strings(content, old, restore)
    return None if restored is None else _pack({"placeholder": placeholder, "layer": layer}, restored)


def fill(template: bytes, roots: Mapping[str, str]) -> bytes:
    """Return the file that a template makes for a prefix.

    Args:
        roots: by layer, its directory in that prefix.

    Raises:
        TemplateError: if it's no template, names another layer, or a root is longer than the placeholder.
    """
    head, body = _unpack(template)
    try:
        if "placeholder" in head:
            return _filled_binary(body, str(head["placeholder"]).encode(), _root(roots, head["layer"]))
        return _short_shebang(
            _filled_text(body, [(int(at), str(layer)) for at, layer in head["cuts"]], roots)
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TemplateError(f"a template that can't be read: {type(error).__name__}: {error}") from None


def _filled_text(body: bytes, cuts: Sequence[tuple[int, str]], roots: Mapping[str, str]) -> bytes:
    pieces, done = [], 0
    for at, layer in cuts:
        if not done <= at <= len(body):
            raise ValueError("cuts out of order, or behind the end")
        pieces += [body[done:at], _root(roots, layer)]
        done = at
    return b"".join([*pieces, body[done:]])


def _filled_binary(body: bytes, placeholder: bytes, root: bytes) -> bytes:
    if len(root) > len(placeholder):
        raise TemplateError(
            f"a binary file has room for a prefix of {len(placeholder)} bytes, this one has {len(root)}: "
            "MONARCH_NB_STORE=DIRECTORY with a shorter path"
        )
    found = _strings(
        body, placeholder, lambda string, room: string.replace(placeholder, root).ljust(room, b"\0")
    )
    assert found is not None
    return found


def _strings(content: bytes, part: bytes, change: Callable[[bytes, int], bytes | None]) -> bytes | None:
    """Return a file in which each C string with `part` in it was changed, NULs after it included; None if one
    can't be.

    Args:
        change: gets the string and how many bytes there are for it and what ends it.
    """
    pieces, at = [], 0
    pattern = re.compile(rb"[^\0]*%s[^\0]*(\0*)" % re.escape(part))
    start = content.find(part)
    while start >= 0:
        begin = content.rfind(b"\0", 0, start) + 1
        found = pattern.match(content, begin)
        assert found is not None
        whole = found.group()
        changed = change(whole[: len(whole) - len(found.group(1))], len(whole))
        if changed is None:
            return None
        pieces += [content[at:begin], changed]
        at = found.end()
        start = content.find(part, at)
    return b"".join([*pieces, content[at:]])


def _short_shebang(content: bytes) -> bytes:
    """Return a script that the kernel can start: one whose first line is too long is started by `sh`, which
    runs the rest by Python.

    For Python the second and third lines are a string; for sh they execute the interpreter with the script
    itself.
    """
    found = _SHEBANG.match(content)
    if found is None or len(found.group(1)) + 2 <= MAX_SHEBANG_BYTES or b"python" not in found.group(1):
        return content
    program, _, arguments = found.group(1).strip().partition(b" ")
    command = b" ".join(filter(None, (b'"%s"' % program, arguments)))
    return b"#!/bin/sh\n'''exec' %s \"$0\" \"$@\"\n' '''\n" % command + content[found.end() :]


def _root(roots: Mapping[str, str], layer: str) -> bytes:
    if layer not in roots:
        raise TemplateError(f"a template names a layer {layer!r}; there are {', '.join(sorted(roots))}")
    return roots[layer].encode("utf-8", "surrogateescape")


def _pack(head: Mapping[str, object], body: bytes) -> bytes:
    return _MAGIC + json.dumps(head, sort_keys=True).encode() + b"\n" + body


def _unpack(template: bytes) -> tuple[Mapping[str, Any], bytes]:
    head, newline, body = template.partition(b"\n")
    try:
        found = json.loads(head.removeprefix(_MAGIC)) if head.startswith(_MAGIC) and newline else None
    except ValueError:
        found = None
    if not isinstance(found, dict) or not ({"placeholder", "layer"} <= found.keys() or "cuts" in found):
        raise TemplateError(f"no template: {template[:60]!r}")
    return found, body
