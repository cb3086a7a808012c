"""The display of a cell: output of many ranks, folded, live, as text and as HTML.

`fold` folds equal lines, `errors` equal failures, `bundle` holds rich values; `cell_view` collects the events
of one cell; `cell_text` and `cell_html` render its snapshot from `templates/`; `live` keeps it on screen.
Nothing here knows where events come from.
"""

from monarch_nb._display.cell_view import CellView
from monarch_nb._display.errors import ErrorGroup, ErrorInfo, fold_errors
from monarch_nb._display.fold import Fold, Row
from monarch_nb._display.live import LiveDisplay
from monarch_nb._display.progress import CellState
from monarch_nb._display.stack_view import StackView
from monarch_nb._display.watcher import ViewWatcher

__all__ = [
    "CellState",
    "CellView",
    "ErrorGroup",
    "ErrorInfo",
    "Fold",
    "LiveDisplay",
    "Row",
    "StackView",
    "ViewWatcher",
    "fold_errors",
]
