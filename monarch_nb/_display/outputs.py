"""A cell's snapshot as the outputs of a notebook: a page of ours, cut where the front end draws something."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from monarch_nb._display import cell_html, cell_text
from monarch_nb._display.displays import Display
from monarch_nb._display.fold import Row
from monarch_nb._protocol.shown import MimeBundle
from monarch_nb._shape.rank_set import name_ranks

if TYPE_CHECKING:
    from monarch_nb._display.cell_view import Snapshot

MAX_NATIVES = 24
"""Maximum number of separate outputs of a cell's displays in a notebook; further ones are shown as text. With
the pages between them that's 49 outputs: JupyterLab folds away what comes after 50.
"""


class Output(msgspec.Struct, frozen=True):
    """One output of a notebook: a page of ours, or what the front end draws. `key` is equal for outputs that
    show the same.
    """

    data: MimeBundle
    metadata: MimeBundle
    key: str
    num_bytes: int
    is_page: bool


def outputs_of(snapshot: Snapshot) -> list[Output]:
    """Return what a notebook shows of a cell, in order; without natives it's one page, or none."""
    return list(_outputs(*_cut(snapshot)))


def page(text: str, html: str) -> Output:
    """Return a page of ours."""
    data: MimeBundle = {"text/plain": text, "text/html": html}
    return Output(data, {}, f"{hash((text, html)):x}", len(text) + len(html), is_page=True)


BLANK = page("", "")


def _outputs(pages: list[Snapshot], natives: list[Display]) -> Iterator[Output]:
    for shown, native in zip_longest(pages, natives):
        html = cell_html.render(shown)
        if html:
            yield page(cell_text.render(shown), html)
        if native is not None:
            yield _drawn(native)


def _drawn(native: Display) -> Output:
    bundle = native.bundle
    data = {**bundle.data, "text/plain": bundle.text()}
    return Output(data, bundle.metadata, bundle.key, len(bundle.key), is_page=False)


def _cut(snapshot: Snapshot) -> tuple[list[Snapshot], list[Display]]:
    """Return what stands before, between and behind the natives, and these. A page before one ends with the
    ranks that it's from.
    """
    bodies, natives = _cut_body(snapshot.body)
    values, drawn = _cut_results(snapshot, MAX_NATIVES - len(natives))
    natives += drawn
    empty = replace(snapshot, title="", body=[], partial_rows=[], results=[], errors=[], state=None)
    pages = [replace(empty, body=body) for body in bodies]
    pages[-1] = replace(pages[-1], partial_rows=snapshot.partial_rows, results=values)
    pages += [empty for _ in drawn]
    pages[-1] = replace(pages[-1], errors=snapshot.errors, state=snapshot.state)
    pages[0] = replace(pages[0], title=snapshot.title)
    return _labelled(pages, natives), natives


def _cut_body(body: list[Row | Display]) -> tuple[list[list[Row | Display]], list[Display]]:
    parts: list[list[Row | Display]] = [[]]
    natives: list[Display] = []
    for item in body:
        if isinstance(item, Display) and item.bundle.is_native and len(natives) < MAX_NATIVES:
            natives.append(item)
            parts.append([])
        else:
            parts[-1].append(item)
    return parts, natives


def _cut_results(snapshot: Snapshot, most: int) -> tuple[list[Display], list[Display]]:
    """Return the results that are in the page, and those that the front end draws."""
    natives = [result for result in snapshot.results if result.bundle.is_native][:most]
    return [result for result in snapshot.results if result not in natives], natives


def _labelled(pages: list[Snapshot], natives: list[Display]) -> list[Snapshot]:
    return [
        replace(
            shown,
            key=f"{shown.key}-{number}" if number else shown.key,
            caption=name_ranks(native.ranks) if native is not None and shown.prefix else "",
        )
        for number, (shown, native) in enumerate(zip_longest(pages, natives))
    ]
