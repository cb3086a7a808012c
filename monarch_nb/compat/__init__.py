"""The commands and classes that users of ipyparallel know: `Client` and `View` here, and `%px`, `%%px` and
`%autopx` by `%load_ext monarch_nb.compat`, which nothing else loads.

    >>> from monarch_nb.compat import Client
    >>> rc = Client()                                # doctest: +SKIP
    >>> rc[:].apply_sync(lambda x: x + 1, 1)         # doctest: +SKIP
    [2, 2]
"""

from __future__ import annotations

from typing import Any

from monarch_nb.compat.view import Applied, Client, View

__all__ = ["Applied", "Client", "View", "load_ipython_extension", "unload_ipython_extension"]


def load_ipython_extension(shell: Any) -> None:
    """Register `%px`, `%%px` and `%autopx` in a notebook, in addition to `%mesh`."""
    from monarch_nb.compat.px import PxMagics

    shell.extension_manager.load_extension("monarch_nb")
    shell.register_magics(PxMagics(shell))


def unload_ipython_extension(shell: Any) -> None:
    """Remove the magics of ipyparallel; `%mesh` stays."""
    for kind, names in (("line", ("px", "autopx")), ("cell", ("px",))):
        for name in names:
            shell.magics_manager.magics[kind].pop(name, None)
