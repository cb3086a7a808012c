"""Names of cells: a notebook's `Cell In[5]` for the made-up file names in the tracebacks of ranks. Also the
cells whose definitions all ranks get (`%%mesh --always`).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Namespace = dict[str, Any]
"""What cells have defined, by name: the globals in which code runs."""
_FILE = re.compile(r'File "([^"\n]+)", line (\d+)')


def name_of(filename: str) -> str | None:
    """Return the name that this notebook has for the cell of a file name; None if it's none of its cells."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    found = shell.compile.format_code_name(filename) if shell is not None else None
    return None if found is None else " ".join(found)


def with_names(traceback: str) -> str:
    """Return a traceback's text with this notebook's names of its cells.

    >>> with_names('File "train.py", line 3, in step')
    'File "train.py", line 3, in step'
    """

    def named(match: re.Match[str]) -> str:
        name = name_of(match[1])
        return match[0] if name is None else f"{name}, line {match[2]}"

    return _FILE.sub(named, traceback)


@dataclass(frozen=True)
class DefinitionCell:
    """A cell whose definitions are for all ranks: it runs first on each rank that is started later (`%%mesh
    --always`).

    Attributes:
        number: its number in the notebook, for tracebacks.
        n: its number in the journal.
    """

    source: str
    number: int = 0
    n: int = 0

    @property
    def names(self) -> frozenset[str]:
        """The names that the cell's source defines, as far as its syntax shows: functions, classes, imports,
        variables.

        >>> sorted(DefinitionCell("import os\\nclass Net: pass\\nlr, k = 1, 2").names)
        ['Net', 'k', 'lr', 'os']
        """
        try:
            body = ast.parse(self.source).body
        except SyntaxError:  # IPython's own
            return frozenset()
        return frozenset(name for statement in body for name in _bound(statement))


def with_definitions(cells: Iterable[DefinitionCell], new: DefinitionCell) -> tuple[DefinitionCell, ...]:
    """Return cells with a new one added: it replaces each cell all of whose names it defines, such as an
    earlier version of itself.

    >>> old = DefinitionCell("def f(): return 1")
    >>> [cell.source for cell in with_definitions([old], DefinitionCell("def f(): return 2"))]
    ['def f(): return 2']
    """
    names = new.names
    kept = [cell for cell in cells if cell.source != new.source and not (cell.names and cell.names <= names)]
    return (*kept, new)


def _bound(statement: ast.stmt) -> Iterable[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in statement.names]
    stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
    return [node.id for node in stored if isinstance(node.ctx, ast.Store)]
