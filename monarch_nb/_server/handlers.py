"""The REST handlers: each reads its request, calls one function, and answers. `labextension/src/protocol.ts`
describes the messages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado.web import HTTPError, authenticated

from monarch_nb._commands.table import COMMANDS
from monarch_nb._server.bodies import BadBody, number, read_resize, read_start, read_text
from monarch_nb._server.protocol import PROTOCOL
from monarch_nb._server.starting import start_mesh
from monarch_nb._shape.rank_set import RankSetError
from monarch_nb._version import __version__
from monarch_nb.exceptions import MeshError, MeshNotFound, MeshUsageError, RankTimeout

if TYPE_CHECKING:
    from monarch_nb._server.allocations import AllocationService
    from monarch_nb._server.meshes import Meshes
    from monarch_nb.mesh import Mesh

T = TypeVar("T")
RESOURCE = "monarch_nb"
"""The resource in requests to an authoriser: "read" for GET and the stream, "write" for changes."""
MAX_LINES = 5000
MAX_BODY_BYTES = 1 << 20


class MeshHandler(APIHandler):
    """The base class of all REST handlers."""

    auth_resource = RESOURCE
    commands: tuple[str, ...] = ()
    """Commands of the table that this handler answers."""

    @property
    def meshes(self) -> Meshes:
        """The meshes of this user."""
        found: Meshes = self.settings["monarch_nb_meshes"]
        return found

    @property
    def allocations(self) -> AllocationService:
        """The requests of this user for hosts of engines."""
        return self.meshes.allocations

    @property
    def directory(self) -> str:
        """The working directory of ranks that are started here."""
        root: str = self.settings.get("server_root_dir", ".")
        return os.path.expanduser(root)

    async def on_mesh(self, name: str, function: Callable[[Mesh], T]) -> T:
        """Call a function with a mesh, in a thread that may block; return its result."""
        return await self.meshes.link(name).call(function)

    async def ask(self, name: str, command: str, **given: object) -> str:
        """Run a command of the table on a mesh; return the text of its result."""
        return await self.on_mesh(name, lambda mesh: COMMANDS[command].ask_text(mesh, **given))

    def body(self) -> dict[str, Any]:
        """Return the request's JSON object; {} if it has none.

        Raises:
            BadBody: if the body isn't a JSON object.
        """
        if not self.request.body:
            return {}
        if len(self.request.body) > MAX_BODY_BYTES:
            raise BadBody(
                f"the body must have at most {MAX_BODY_BYTES:,} bytes, not {len(self.request.body):,}"
            )
        try:
            found = json.loads(self.request.body)
        except ValueError:
            raise BadBody("the body is not JSON") from None
        if not isinstance(found, dict):
            raise BadBody(f"the body must be a JSON object, not {type(found).__name__}")
        return found

    def answer(self, value: object, status: int = 200) -> None:
        """Send a response with a JSON body."""
        self.set_status(status)
        self.finish(msgspec.json.encode(value))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Send an error response, whose body describes the error in a sentence."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        status, text = _explain(error, status_code)
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps({"message": text}))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Log an exception, unless it was caused by the request."""
        if not isinstance(value, MeshError | ValueError | RecursionError | HTTPError):
            # Not by tornado's method: it logs the request with its address, which may contain a token.
            self.log.error(
                "Uncaught exception in %s %s",
                self.request.method,
                self.request.path,
                exc_info=(typ, value, tb),
            )


def _explain(error: BaseException | None, status: int) -> tuple[int, str]:
    """Return the HTTP status and the message for an error."""
    if isinstance(error, BadBody | MeshUsageError | RankSetError):
        return 400, str(error)
    if isinstance(error, RecursionError):  # this package's objects aren't nested deeply
        return 400, "the body's JSON is nested too deep"
    if isinstance(error, MeshNotFound):
        return 404, str(error)
    if isinstance(error, RankTimeout):
        return 504, str(error)
    if isinstance(error, MeshError | ValueError):
        return 409, str(error)
    if isinstance(error, HTTPError):
        return error.status_code, error.log_message or error.reason or f"HTTP {error.status_code}"
    return status, f"{type(error).__name__}: {error}" if error is not None else f"HTTP {status}"


class VersionHandler(MeshHandler):
    """The handler for the version and the protocol of this server."""

    @authenticated
    @authorized
    async def get(self) -> None:
        """Send the version and the protocol."""
        self.answer({"version": __version__, "protocol": PROTOCOL})


class MeshesHandler(MeshHandler):
    """The handler that lists and starts meshes."""

    commands = ("start",)

    @authenticated
    @authorized
    async def get(self) -> None:
        """Send a row for each mesh."""
        self.answer(await self.meshes.summaries())

    @authenticated
    @authorized
    async def post(self) -> None:
        """Start a mesh, and send its row; if hosts have to be asked for, send the request for them."""
        request = read_start(self.body())
        if request.on:
            row = await self.allocations.start(request, self.directory)
            if row is not None:
                self.answer(row, 202)
                return
        else:
            await start_mesh(request, self.directory)
        status = await self.on_mesh(request.name, lambda mesh: mesh.status())
        self.answer(status.summary(), 201)


class OneMeshHandler(MeshHandler):
    """The handler for one mesh: its state, its end."""

    commands = ("status", "stop")

    @authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Send the mesh's state."""
        self.answer(await self.on_mesh(name, lambda mesh: mesh.status()))

    @authenticated
    @authorized
    async def delete(self, name: str) -> None:
        """Stop the mesh."""
        await self.ask(name, "stop")
        self.set_status(204)
        self.finish()


class ClustersHandler(MeshHandler):
    """The handler that lists where hosts can be asked for."""

    commands = ("clusters",)

    @authenticated
    @authorized
    async def get(self) -> None:
        """Send profiles and engines, and whether each can be used here."""
        self.answer(await self.allocations.clusters())


class AllocationsHandler(MeshHandler):
    """The handler that lists requests for hosts of engines."""

    commands = ("queue",)

    @authenticated
    @authorized
    async def get(self) -> None:
        """Send a row for each request, as its engine says now."""
        self.answer(await self.allocations.look())


class OneAllocationHandler(MeshHandler):
    """The handler for the requests of one mesh."""

    commands = ("cancel",)

    @authenticated
    @authorized
    async def delete(self, name: str) -> None:
        """Give back the mesh's hosts, whether it waits for them or runs."""
        await self.allocations.cancel(name)
        self.set_status(204)
        self.finish()


class WaitHandler(MeshHandler):
    """The handler that has a mesh waited for whose hosts were requested before."""

    @authenticated
    @authorized
    async def post(self, name: str) -> None:
        """Start the mesh's ranks once its hosts are there."""
        await self.allocations.wait(name, self.directory)
        self.answer({}, 202)


class InterruptHandler(MeshHandler):
    """The handler that interrupts what runs."""

    commands = ("interrupt",)

    @authenticated
    @authorized
    async def post(self, name: str) -> None:
        """Interrupt ranks: {"ranks": "0-3"}; all, if left out."""
        ranks = read_text(self.body(), "ranks", "all", empty_is_default=True)
        await self.ask(name, "interrupt", ranks=ranks)
        self.answer({})


class HealHandler(MeshHandler):
    """The handler that heals a mesh."""

    commands = ("heal",)

    @authenticated
    @authorized
    async def post(self, name: str) -> None:
        """Heal the mesh: {"replay": true} runs the cells again that defined the lost variables."""
        replay = bool(self.body().get("replay"))
        self.answer({"report": await self.ask(name, "heal", replay=replay)})


class ResizeHandler(MeshHandler):
    """The handler that changes sizes."""

    commands = ("resize",)

    @authenticated
    @authorized
    async def post(self, name: str) -> None:
        """Resize the mesh: {"sizes": [["gpus", 4]]}."""
        sizes = read_resize(self.body())
        self.answer({"report": await self.ask(name, "resize", sizes=sizes)})


class AttachHandler(MeshHandler):
    """The handler for the code that attaches a notebook."""

    commands = ("attach",)

    @authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Send the code of a cell that attaches to the mesh."""
        self.meshes.link(name)
        self.answer({"code": f"%load_ext monarch_nb\n%mesh attach {name}"})


class LogsHandler(MeshHandler):
    """The handler for the output of ranks."""

    commands = ("logs",)

    @authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Send a page of output: ?ranks=0-3&grep=loss&before=POSITION&limit=500."""
        from monarch_nb.mesh.log_page import read_page

        ranks = self.get_query_argument("ranks", "") or "all"
        grep = self.get_query_argument("grep", "")
        before = number("before", self.get_query_argument("before", ""))
        limit = number("limit", self.get_query_argument("limit", ""))
        chosen = 500 if limit is None else max(1, min(limit, MAX_LINES))
        page = await self.on_mesh(
            name, lambda mesh: read_page(mesh, mesh.select(ranks), grep=grep, before=before, limit=chosen)
        )
        self.answer(page)


class StacksHandler(MeshHandler):
    """The handler for the Python stacks of ranks."""

    commands = ("stacks",)

    @authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Send Python stacks: ?ranks=0-3."""
        ranks = self.get_query_argument("ranks", "") or "all"
        self.answer({"text": await self.ask(name, "stacks", ranks=ranks)})


class JournalHandler(MeshHandler):
    """The handler for the journal: what ran on a mesh."""

    commands = ("history",)

    @authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Send the last entries of the journal, oldest first: ?limit=100."""
        limit = number("limit", self.get_query_argument("limit", ""))
        rows = await self.on_mesh(name, lambda mesh: mesh.journal.rows(100 if limit is None else limit))
        self.answer(rows)
