"""Encodes what a rank displays so that it can always be sent: a mimebundle is the user's, and may hold any
values.

What can't be shown is left out, and named in the bundle's text.
"""

from __future__ import annotations

from base64 import b64encode  # by name: a cell may put something else into the modules
from collections.abc import Mapping
from json import dumps as to_json
from json import loads as from_json
from typing import Any

from monarch_nb._protocol.shown import MimeBundle
from monarch_nb._transport.failure import class_name, clipped, message_of
from monarch_nb._units import size_text

MAX_TEXT = 1 << 20
TEXT_LEFT = 18_000
"""Length to which a longer text is cut: displays show that much. Richer types are sent whole or not at
all.
"""
MAX_RICH_BYTES = 8 << 20
_HOW_TO_GET_ALL = "%%mesh --output NAME brings the value of a cell's last line itself, %mesh pull a variable"


class _Refused(Exception):
    """The error of something that can't be shown; the message says why."""


def encode_bundle(data: Any) -> MimeBundle:
    """Return a mimebundle that JSON can represent: bytes become base64; parts that can't be shown are named
    in its text.
    """
    if not isinstance(data, Mapping):
        return {
            "text/plain": f"<nothing to show: expected a dict of data by MIME type, not {class_name(data)}>"
        }
    found: MimeBundle = {}
    refused: list[str] = []
    for mime, value in list(data.items()):
        try:
            name = _type_of(mime)
            found[name] = _encoded(name, value)
        except _Refused as reason:
            refused.append(f"<{_name_of(mime)} not shown: {reason}>")
        except BaseException as error:
            refused.append(f"<{_name_of(mime)} not shown: {class_name(error)}: {message_of(error)}>")
    if refused:
        found["text/plain"] = "\n".join([*([found["text/plain"]] if "text/plain" in found else []), *refused])
    return found


def encode_metadata(metadata: Any) -> MimeBundle:
    """Return metadata that JSON can represent; other values are left out."""
    try:
        found = from_json(to_json(metadata or {}))
    except BaseException:
        return {}
    return found if isinstance(found, dict) else {}


def _type_of(mime: Any) -> str:
    if not isinstance(mime, str):
        raise _Refused(f"a MIME type is a str, not {class_name(mime)}")
    return clipped(mime, 200, "")


def _name_of(mime: Any) -> str:
    return clipped(mime, 200, "") if isinstance(mime, str) else "something"


def is_json(mime: str) -> bool:
    """Say whether the data of a MIME type is JSON."""
    return mime == "application/json" or mime.endswith("+json")


def _encoded(mime: str, value: Any) -> Any:
    if is_json(mime):
        return _encoded_json(value)
    if isinstance(value, bytes | bytearray | memoryview):
        if len(value) > MAX_RICH_BYTES:
            raise _Refused(_too_large(len(value)))
        return b64encode(value).decode()
    if isinstance(value, list | tuple) and all(isinstance(line, str) for line in value):
        value = "".join(value)
    if not isinstance(value, str):
        raise _Refused(f"expected text, not {class_name(value)}")
    if mime == "text/plain":
        return clipped(value, TEXT_LEFT if len(value) > MAX_TEXT else MAX_TEXT, _HOW_TO_GET_ALL)
    if len(value) > MAX_RICH_BYTES:
        raise _Refused(_too_large(len(value)))
    return clipped(value, len(value), "")


def _encoded_json(value: Any) -> Any:
    """Return a value as it is after encoding to JSON and back.

    Raises:
        Exception: whatever JSON says of it.
    """
    text = to_json(value, ensure_ascii=False)
    text.encode()  # lone surrogates can't be sent
    if len(text) > MAX_RICH_BYTES:
        raise _Refused(_too_large(len(text)))
    return from_json(text)


def _too_large(num_bytes: int) -> str:
    return f"{size_text(num_bytes)} of it, and {size_text(MAX_RICH_BYTES)} are the limit; {_HOW_TO_GET_ALL}"
