"""Converts ANSI escape sequences to HTML, or removes them.

Colours become JupyterLab's own class names (`ansi-red-fg`, `ansi-red-intense-bg`, `ansi-bold`), so that a
theme can style them; 256 and 24-bit colours become inline styles. Every other escape sequence and control
character is dropped, all text is escaped: nothing a rank prints can become markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

import msgspec
from msgspec.structs import replace

_ESCAPE = re.compile(
    r"\x1b\[([0-9;:]*)m"  # SGR: colours
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # any other CSI: cursor movement, erase
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: titles, links
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f]"
)
_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_FLAGS = {1: "bold", 3: "italic", 4: "underline", 7: "inverse"}
_FLAGS_OFF = {22: "bold", 23: "italic", 24: "underline", 27: "inverse"}


class _Style(msgspec.Struct, frozen=True):
    """The text style that escape sequences have set. A colour is a class name stem or a CSS `rgb()`."""

    fg: str = ""
    bg: str = ""
    flags: frozenset[str] = frozenset()

    def open_tag(self) -> str:
        fg, bg = self.fg, self.bg
        if "inverse" in self.flags:
            fg, bg = bg or "default-inverse", fg or "default-inverse"
        classes = [f"ansi-{flag}" for flag in sorted(self.flags - {"inverse"})]
        styles = []
        for colour, suffix, prop in ((fg, "fg", "color"), (bg, "bg", "background-color")):
            if colour.startswith("rgb"):
                styles.append(f"{prop}: {colour}")
            elif colour:
                classes.append(f"ansi-{colour}-{suffix}")
        attributes = f' class="{" ".join(classes)}"' if classes else ""
        attributes += f' style="{"; ".join(styles)}"' if styles else ""
        return f"<span{attributes}>" if attributes else ""


_PLAIN = _Style()


def to_html(text: str) -> str:
    """Return the text as escaped HTML with spans for its colours.

    >>> to_html("\\x1b[31m<b>\\x1b[0m")
    '<span class="ansi-red-fg">&lt;b&gt;</span>'
    """
    if not _ESCAPE.search(text):
        return escape(text)
    parts: list[str] = []
    for style, run in _runs(text):
        tag = style.open_tag() if style != _PLAIN else ""
        parts.append(f"{tag}{escape(run)}</span>" if tag else escape(run))
    return "".join(parts)


def strip(text: str) -> str:
    """Return the text without escape sequences and control characters.

    >>> strip("\\x1b[1;31mred\\x1b[0m")
    'red'
    """
    return _ESCAPE.sub("", text)


def _runs(text: str) -> Iterator[tuple[_Style, str]]:
    style, start, run = _PLAIN, 0, ""
    for match in _ESCAPE.finditer(text):
        run += text[start : match.start()]
        start = match.end()
        if match[1] is None:
            continue
        changed = _apply(style, [int(code or 0) for code in match[1].replace(":", ";").split(";")])
        if changed != style and run:
            yield style, run
            run = ""
        style = changed
    run += text[start:]
    if run:
        yield style, run


def _apply(style: _Style, codes: list[int]) -> _Style:
    rest = iter(codes)
    for code in rest:
        if code == 0:
            style = _PLAIN
        elif code in _FLAGS:
            style = replace(style, flags=style.flags | {_FLAGS[code]})
        elif code in _FLAGS_OFF:
            style = replace(style, flags=style.flags - {_FLAGS_OFF[code]})
        else:
            style = _apply_colour(style, code, rest)
    return style


def _apply_colour(style: _Style, code: int, rest: Iterator[int]) -> _Style:
    tens, ones = divmod(code, 10)
    intense = tens in (9, 10)
    if tens not in (3, 4, 9, 10) or (intense and ones > 7):
        return style
    if ones < 8:
        colour = _NAMES[ones] + ("-intense" if intense else "")
    else:
        colour = _extended(rest) if ones == 8 else ""
    return replace(style, fg=colour) if tens in (3, 9) else replace(style, bg=colour)


def _extended(rest: Iterator[int]) -> str:
    kind = next(rest, None)
    if kind == 2:
        red, green, blue = (min(next(rest, 0), 255) for _ in range(3))
        return f"rgb({red}, {green}, {blue})"
    code = next(rest, 256) if kind == 5 else 256
    if code < 16:
        return _NAMES[code % 8] + ("-intense" if code > 7 else "")
    if code < 232:
        red, green, blue = (level and 55 + 40 * level for level in _cube(code - 16))
        return f"rgb({red}, {green}, {blue})"
    return f"rgb({', '.join([str(8 + 10 * (code - 232))] * 3)})" if code < 256 else ""


def _cube(code: int) -> tuple[int, int, int]:
    return code // 36, code // 6 % 6, code % 6
