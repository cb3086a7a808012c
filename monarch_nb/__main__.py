"""`python -m monarch_nb` is the command `monarch-nb`, of the interpreter that runs it."""

from __future__ import annotations

import sys

from monarch_nb._cli import main

if __name__ == "__main__":
    sys.exit(main())
