"""tqdm on a rank: its bars are sent to the cell as bars, with names, instead of text that moves a cursor.

All of `tqdm`, `tqdm.auto` and `tqdm.notebook` become the plain class, whose `display` is sent; so nested bars
don't write over each other, other ranks' bars join them (`_display.bars`), and no widget is needed. A bar
that stays when it's done ends as a line of text.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from monarch_nb._protocol.shown import Bar, Shown
from monarch_nb._rank.imports import patch_imports
from monarch_nb._transport.context import current_origin

if TYPE_CHECKING:
    from monarch_nb._rank.streams import OutputPipe


def install(pipe: OutputPipe) -> None:
    """Have tqdm show its bars this way, once it is imported, or now if it has been."""
    patch_imports(
        {"tqdm.std": lambda module: _patch_bars(module.tqdm, pipe), "tqdm.notebook": _patch_notebook}
    )


def _patch_notebook(module: Any) -> None:
    """Replace the bars that are made of widgets by plain ones."""
    from tqdm import std  # type: ignore[import-untyped]

    module.tqdm = module.tqdm_notebook = std.tqdm
    module.trange = module.tnrange = std.trange


def _patch_bars(bars: Any, pipe: OutputPipe) -> None:
    """Send what a bar displays, if it would write to the rank's own output."""
    display, close, clear = bars.display, bars.close, bars.clear

    def is_ours(bar: Any) -> bool:
        return getattr(bar.fp, "_wrapped", bar.fp) in pipe.streams.values()

    def send(bar: Any, text: str) -> None:
        pipe.display(current_origin(), Shown(bar=Bar(f"{id(bar):x}", text)))

    def display_bar(bar: Any, msg: str | None = None, pos: int | None = None) -> Any:
        last = getattr(bar, "_last_shown", None)
        if last is not None:  # the bar closes
            last.append(str(bar) if msg is None else msg)
        elif is_ours(bar):
            send(bar, str(bar) if msg is None else msg)
        else:
            return display(bar, msg, pos)
        return True

    def close_bar(bar: Any) -> None:
        if getattr(bar, "disable", True) or not is_ours(bar):
            close(bar)
            return
        own, bar.fp, bar._last_shown = bar.fp, io.StringIO(), []
        try:
            close(bar)
            send(bar, "")
            for text in bar._last_shown:
                if text:  # a bar isn't an error, whatever stream it was written to
                    pipe.streams["stdout"].write(text + "\n")
        finally:
            bar.fp = own
            del bar._last_shown

    def clear_bar(bar: Any, nolock: bool = False) -> None:
        if not is_ours(bar):
            clear(bar, nolock)

    bars.display, bars.close, bars.clear = display_bar, close_bar, clear_bar
