"""Renders a table of strings as text and as HTML."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from monarch_nb._display.template import Markup, joined, render


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """Return a table as text; the columns in `right` are right-aligned.

    >>> print(text_table(["what", "num"], [["a", "5"], ["long", "10"]], right=[1]))
    what  num
    a       5
    long   10
    """
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def html_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    title: str = "",
    code: Collection[int] = (),
) -> Markup:
    """Return a table as HTML. The columns in `code` use a monospace font; cells have no background, so that
    rows can be striped.

    >>> "&lt;b&gt;" in html_table(["what"], [["<b>"]])
    True
    """
    return render(
        "table.html",
        title=title,
        head=joined(
            [render("table_head.html", side=_side(i, right), text=text) for i, text in enumerate(head)]
        ),
        rows=joined([_row(row, right, code) for row in rows]),
    )


def _row(row: Sequence[str], right: Collection[int], code: Collection[int]) -> Markup:
    cells = [
        render("code_cell.html" if i in code else "table_cell.html", side=_side(i, right), text=text)
        for i, text in enumerate(row)
    ]
    return render("table_row.html", cells=joined(cells))


def _side(column: int, right: Collection[int]) -> str:
    return "right" if column in right else "left"
