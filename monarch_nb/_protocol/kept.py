"""The base of types kept as JSON in files, which processes of other versions read, too."""

from __future__ import annotations

from json import dumps as to_json  # by name: a cell may put something else into the modules
from json import loads as from_json
from typing import Any, Self

import msgspec
from msgspec import convert, to_builtins

from monarch_nb._protocol.readers import reader_of

__all__ = ["Kept"]


class Kept(msgspec.Struct, frozen=True):
    """A type that is kept as JSON; fields of later versions are passed over.

    `json` writes it, for `msgspec.json` refuses what users may give: NaN, and text with lone surrogates (file
    names that are no UTF-8).
    """

    def plain(self) -> dict[str, Any]:
        """Return the record as plain data, as its JSON has it."""
        found: dict[str, Any] = to_builtins(self)
        return found

    @classmethod
    def of(cls, found: Any) -> Self:
        """Return the record that `plain` has described.

        Raises:
            ValueError: if it's something else.
        """
        reader_of(cls)
        return convert(found, cls, str_keys=True)

    def as_json(self) -> bytes:
        """Return the record as JSON."""
        return to_json(self.plain()).encode()

    @classmethod
    def of_json(cls, data: bytes | memoryview) -> Self:
        """Return the record that `as_json` has described.

        Raises:
            ValueError: if it's something else.
        """
        try:
            return cls.of(from_json(bytes(data)))
        except RecursionError:
            raise ValueError("JSON that is nested too deeply") from None
