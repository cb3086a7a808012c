"""Several cells below each other in one display: the cells that a returning user has missed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monarch_nb._display.cell_view import CellView
from monarch_nb._display.outputs import Output, page
from monarch_nb._display.progress import CellState


class StackView:
    """Several views below each other, shown as one. `LiveDisplay` takes it for a view.

    Args:
        shows_empty: whether views that have only a title are shown.

    >>> views = [CellView([0], world_size=1, title="first"), CellView([0], world_size=1, title="second")]
    >>> views[0].output(0, "stdout", "hi\\n"); views[1].output(0, "stdout", "ho\\n")
    >>> print(StackView(views).text())
    first
    hi
    second
    ho
    """

    def __init__(self, views: Sequence[CellView], *, shows_empty: bool = True) -> None:
        self._views = list(views)
        self._shows_empty = shows_empty
        self._titled: set[int] = set()

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Register a function that is called after each change of any view."""
        for view in self._views:
            view.listen(listener)

    @property
    def version(self) -> int:
        """Grows with each change."""
        return sum(view.version for view in self._views)

    def close(self) -> None:
        """Note that nobody waits for the cells any more."""
        for view in self._views:
            view.close()

    def state(self) -> CellState:
        """Return the progress of the first cell that still runs, or of the last one."""
        states = [view.state() for view in self._views]
        return next((s for s in states if s.running), states[-1])

    def next_tick_s(self) -> float | None:
        """Return the seconds until something changes without an event."""
        return min((t for v in self._views if (t := v.next_tick_s()) is not None), default=None)

    def unfinished_text(self) -> str:
        """Return a sentence on how unfinished cells continue when they are no longer displayed."""
        return "; ".join(text for view in self._views if (text := view.unfinished_text()))

    def leave(self, why: str) -> None:
        """Mark the cells as no longer displayed, and print how they continue."""
        for view in self._views:
            view.leave(why)

    def visible(self) -> bool:
        """Say whether there is anything to show."""
        return any(view.visible() or (view.title and self._shows_empty) for view in self._views)

    def _shown(self) -> list[CellView]:
        return [view for view in self._views if self._shows_empty or view.visible()]

    def text(self) -> str:
        """Return all views as text."""
        return "\n".join(text for view in self._shown() if (text := view.text()))

    def html(self) -> str:
        """Return all views as HTML."""
        return "".join(view.html() for view in self._shown())

    def outputs(self) -> list[Output]:
        """Return what a notebook shows, in order; pages that follow each other are one."""
        found: list[Output] = []
        for output in (output for view in self._shown() for output in view.outputs()):
            if found and found[-1].is_page and output.is_page:
                found[-1] = _joined(found[-1], output)
            else:
                found.append(output)
        return found

    def drain(self, *, final: bool = True) -> str:
        """Return the lines completed since the last call, each view's after its title."""
        parts = []
        for position, view in enumerate(self._views):
            text = view.drain(final=final)
            if text:
                parts.append(self._title(position) + text)
        return "".join(parts)

    def _title(self, position: int) -> str:
        title = self._views[position].title
        if not title or position in self._titled:
            return ""
        self._titled.add(position)
        return f"{title}\n"

    def closing_text(self) -> str:
        """Return the text after the output lines."""
        closing = [view.closing_text() for view in self._views]
        shown = [self._shows_empty or bool(text) for text in closing]
        return "".join(self._title(i) + text for i, text in enumerate(closing) if shown[i])


def _joined(above: Output, below: Output) -> Output:
    texts = [output.data["text/plain"] for output in (above, below)]
    return page("\n".join(filter(None, texts)), above.data["text/html"] + below.data["text/html"])
