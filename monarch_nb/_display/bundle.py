"""The rich output of one rank: a mimebundle that can be compared, and shown as HTML or as text.

A bundle is what IPython's display machinery made on the rank: MIME type to data. The richest type that a
saved page can hold wins: HTML, SVG, then images. Others (Markdown, LaTeX, JSON, JavaScript, plots of plotly
or vega) are the front end's own: a notebook gets them as outputs of their own (`is_native`), text shows what
they say. Text is escaped; `text/html` and SVG are the user's own and go in as they are.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from monarch_nb._display import ansi
from monarch_nb._display.template import Markup, render
from monarch_nb._protocol.shown import MimeBundle
from monarch_nb._units import size_text

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
NATIVE_TYPES = frozenset(
    {
        "text/markdown",
        "text/latex",
        "application/json",
        "application/geo+json",
        "application/javascript",
        "application/pdf",
    }
)
"""Types that front ends display themselves; also all types that programs have defined (`application/vnd...`),
video and audio.
"""
_READABLE = ("text/markdown", "text/latex", "application/javascript", "application/json")
_OBJECT = re.compile(r"<[\w.]+ object>")
_DRAWN_ID = re.compile(r"""\bid=["']?([\w-]*[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12})\b""")
_MAX_DRAWN_IDS = 50
_MAX_COMPARED_CHARS = 1 << 18
MAX_RICH_CHARS = 8 << 20
MAX_TEXT_CHARS = 20_000
MAX_TEXT_LINES = 200


def _without_drawn_ids(html: str) -> str:
    """Return HTML with equal words for the ids that a package has drawn for its elements, as plotly and
    altair do: they are others on each rank. A long page is left as it is, and one with many: each takes a
    search.

    >>> _without_drawn_ids('<p id="fig-00112233445566778899aabbccddeeff">')
    '<p id="drawn0">'
    """
    if len(html) > _MAX_COMPARED_CHARS:
        return html
    found = dict.fromkeys(_DRAWN_ID.findall(html))
    for number, drawn in enumerate(found if len(found) <= _MAX_DRAWN_IDS else ()):
        html = html.replace(drawn, f"drawn{number}")
    return html


@dataclass(frozen=True, slots=True)
class Bundle:
    """Data by MIME type, and its metadata (image sizes). `key` is equal for bundles that show the same.

    >>> Bundle.of({"text/plain": "42"}) == Bundle.of({"text/plain": "42"})
    True
    """

    data: MimeBundle = field(compare=False)
    metadata: MimeBundle = field(compare=False)
    key: str = field(repr=False)

    @classmethod
    def of(cls, data: MimeBundle, metadata: MimeBundle | None = None) -> Bundle:
        """Build a bundle from what a rank sent."""
        meta = metadata or {}
        html = data.get("text/html")
        compared = {**data, "text/html": _without_drawn_ids(html)} if isinstance(html, str) else data
        return cls(data, meta, json.dumps([compared, meta], sort_keys=True, default=repr))

    @property
    def rich_type(self) -> str | None:
        """The MIME type that `html` shows; None when the bundle is text only."""
        for mime in ("text/html", "image/svg+xml", *IMAGE_TYPES):
            if mime in self.data and len(self.data[mime]) <= MAX_RICH_CHARS:
                return mime
        return None

    @property
    def is_native(self) -> bool:
        """Say whether the front end displays this bundle better than this package's HTML can."""
        drawn = [
            mime
            for mime in self.data
            if mime in NATIVE_TYPES or mime.startswith(("application/vnd.", "video/", "audio/"))
        ]
        if self.rich_type == "text/html":
            return any(mime.startswith("application/vnd.") for mime in drawn)
        return bool(drawn)

    def _plain(self) -> Any:
        """Return the text; if it only names a class, the value itself."""
        plain = self.data.get("text/plain")
        if plain is None or (isinstance(plain, str) and _OBJECT.fullmatch(plain)):
            for mime in _READABLE:
                if mime in self.data:
                    found = self.data[mime]
                    return found if isinstance(found, str) else json.dumps(found, indent=1)
        return plain

    def text(self) -> str:
        """Return the text/plain, shortened; without one, the names of the types."""
        plain = self._plain()
        text = ansi.strip(joined_text(plain)) if plain is not None else f"<{', '.join(sorted(self.data))}>"
        large = [
            mime
            for mime, data in self.data.items()
            if isinstance(data, str | bytes) and len(data) > MAX_RICH_CHARS
        ]
        return clipped(text) + "".join(
            f"\n... {mime} of {size_text(len(self.data[mime]))} not shown"
            for mime in large
            if mime != "text/plain"
        )

    def html(self) -> Markup:
        """Return the HTML of this bundle."""
        mime = self.rich_type
        if mime is None:
            return render("text.html", text=self.text())
        if mime not in IMAGE_TYPES:
            return render("rich.html", content=Markup(joined_text(self.data[mime])))
        data = self.data[mime]
        encoded = b64encode(data).decode() if isinstance(data, bytes) else joined_text(data).replace("\n", "")
        return render("image.html", mime=mime, data=encoded, size=self._image_size(mime), alt=self.text())

    def _image_size(self, mime: str) -> Markup:
        sizes = self.metadata.get(mime, self.metadata)
        given = (
            [(side, sizes.get(side)) for side in ("width", "height")] if isinstance(sizes, Mapping) else []
        )
        return Markup(
            "".join(f' {side}="{int(size)}"' for side, size in given if isinstance(size, int | float))
        )


def joined_text(value: object) -> str:
    """Return a value of a bundle as one string: notebooks on disk hold lists of lines."""
    return "".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def clipped(text: str) -> str:
    """Return the text, cut at `MAX_TEXT_LINES` and `MAX_TEXT_CHARS` with a line that says what is missing."""
    head = "\n".join(text.split("\n", MAX_TEXT_LINES)[:MAX_TEXT_LINES])[:MAX_TEXT_CHARS]
    if len(head) == len(text):
        return text
    num_lines = text.count("\n", len(head) + 1) + 1
    return f"{head}\n... {len(text) - len(head):,} more characters on {num_lines:,} lines not shown"
