"""The file names of cells: a cell's code has a file name without a file, on ranks
`<ipython-input-5-0a1b2c>`.
"""

from __future__ import annotations

import re

_CELL = re.compile(r"^<ipython-input-(\d+)-")
_KERNEL_CELL = re.compile(r"/ipykernel_\d+/")
_IN_TRACEBACK = re.compile(r'File "<ipython-input-(\d+)-\w+>"')
CELL_FRAME = re.compile(r'(?m)^  File "<ipython-input-(\d+)-([0-9a-f]+)>", line (\d+), in [^\n]*\n(?!    )')
"""A cell's frame in the text of a stack, without its source: number, digest of the source, line."""


def cell_number(file: str) -> int | None:
    """Return the number of the cell of a mesh that a file name stands for; None if it's a file.

    >>> cell_number("<ipython-input-5-ab>"), cell_number("train.py")
    (5, None)
    """
    found = _CELL.match(file)
    return int(found[1]) if found else None


def is_of_kernel(file: str) -> bool:
    """Say whether a file name stands for a cell that a kernel has run, not a mesh.

    >>> is_of_kernel("/tmp/ipykernel_71/12345.py")
    True
    """
    return _KERNEL_CELL.search(file) is not None


def with_cell_names(text: str, name: str) -> str:
    r"""Return the text of a stack with cells named by number.

    Args:
        name: what stands for `File "..."`, with `\1` for the number.

    >>> with_cell_names('File "<ipython-input-5-ab>", line 7', r"In[\1]")
    'In[5], line 7'
    """
    return _IN_TRACEBACK.sub(name, text)
