"""The panel as a web page: `monarch_nb/dashboard`, on a Jupyter server or the server of `monarch-nb
dashboard`.

The page and its script are the same for both; what it shows comes by the same REST and WebSocket as
JupyterLab's panel.
"""

from __future__ import annotations

import html
from functools import lru_cache
from pathlib import Path
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import JupyterHandler
from tornado.web import HTTPError, authenticated

PATH = "/monarch_nb/dashboard"
_FOLDER = Path(__file__).parent / "static"
_TYPES = {"dashboard.js": "text/javascript", "dashboard.css": "text/css"}
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Meshes</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{base}monarch_nb/static/dashboard.css">
<script type="module" src="{base}monarch_nb/static/dashboard.js"></script>
</head>
<body><div id="monarch-nb-dashboard" data-base-url="{base}"></div></body>
</html>
"""


class _PageHandler(JupyterHandler):
    auth_resource = "monarch_nb"

    @property
    def content_security_policy(self) -> str:
        """The page's content security policy: nothing is loaded from other servers."""
        return (
            "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors "
            "'self'; base-uri 'none'"
        )

    def write_error(self, status_code: int, **_: Any) -> None:
        """Say what is wrong in a line: the dashboard's own server has no templates for pages."""
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{status_code}: {self._reason}")


class DashboardHandler(_PageHandler):
    """The handler for the page."""

    @authenticated
    @authorized
    async def get(self) -> None:
        """Send the page. A request with a token is redirected to the page without it, which then uses a
        cookie.
        """
        if self.get_argument("token", ""):
            mesh = self.get_argument("mesh", "")
            self.redirect(self.request.path + (f"?{_query(mesh)}" if mesh else ""))
            return
        _ = self.xsrf_token  # sets the cookie that the script sends back
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Cache-Control", "no-store")
        self.finish(_PAGE.format(base=html.escape(self.base_url)))


def _query(mesh: str) -> str:
    from urllib.parse import urlencode

    return urlencode({"mesh": mesh})


class StaticHandler(_PageHandler):
    """The handler for the page's script and style."""

    @authenticated
    async def get(self, name: str) -> None:
        """Send a file."""
        if name not in _TYPES:
            raise HTTPError(404)
        self.set_header("Content-Type", f"{_TYPES[name]}; charset=utf-8")
        self.set_header("Cache-Control", "no-cache")
        self.finish(_content(name))


@lru_cache(maxsize=4)
def _content(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()


def routes() -> list[tuple[str, type[Any]]]:
    """Return the addresses and their handlers, below the server's base URL."""
    return [(PATH, DashboardHandler), (r"/monarch_nb/static/([\w.-]+)", StaticHandler)]
