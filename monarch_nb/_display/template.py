"""HTML templates in files, with escaping by default.

A template is an `.html` file in `templates/` with `${name}` in it. A value is escaped unless it is `Markup`,
which only templates and `ansi.to_html` produce, and `bundle` for the HTML that the user's own objects render.
A missing name is a KeyError.
"""

from __future__ import annotations

import re
from functools import lru_cache
from html import escape
from pathlib import Path

_FOLDER = Path(__file__).parent / "templates"
_FIELD = re.compile(r"\$\{(\w+)\}")


class Markup(str):
    """A string that is HTML already, and isn't escaped again.

    >>> render("note.html", text="<b>"), render("note.html", text=Markup("<b>"))
    ('<span class="mno-note">&lt;b&gt;</span>', '<span class="mno-note"><b></span>')
    """

    __slots__ = ()


def render(template: str, /, **values: object) -> Markup:
    """Fill in a template."""
    parts = _parts(template)
    filled = list(parts)
    filled[1::2] = [_escaped(values[field]) for field in parts[1::2]]
    return Markup("".join(filled))


def joined(parts: list[Markup]) -> Markup:
    """Concatenate pieces of HTML."""
    return Markup("".join(parts))


def source(template: str) -> str:
    """Return the text of a file in `templates/`."""
    return (_FOLDER / template).read_text(encoding="utf-8").rstrip("\n")


def _escaped(value: object) -> str:
    return value if isinstance(value, Markup) else escape(str(value))


@lru_cache(maxsize=64)
def _parts(template: str) -> tuple[str, ...]:
    return tuple(_FIELD.split(source(template)))
