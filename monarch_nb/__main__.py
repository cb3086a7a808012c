"""The module that `python -m monarch_nb` runs: the command `monarch-nb`, with the interpreter that runs
it.
"""

from __future__ import annotations

import sys

from monarch_nb._cli import main

if __name__ == "__main__":
    sys.exit(main())
