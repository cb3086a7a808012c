"""The name of a mesh: the claim to it, and the connection file by which programs find this controller."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from monarch_nb._protocol.claims import ClaimNote, ConnectionNote
from monarch_nb._protocol.programs import ClaimName
from monarch_nb._protocol.registry import Sender, handles
from monarch_nb._protocol.states import ClaimState
from monarch_nb._wire import message as wire
from monarch_nb._wire.claim import Claim
from monarch_nb._wire.process import machine_id, start_time

if TYPE_CHECKING:
    from monarch_nb._host.controller.clients import ClientService
    from monarch_nb._host.controller.journal_service import JournalService
    from monarch_nb._host.controller.registry import Registry


class Parts(Protocol):
    """The parts of a controller that this module uses."""

    clients: ClientService
    directory: str
    hostname: str
    journal: JournalService
    name: str
    registry: Registry


def write_connection(path: str, content: ConnectionNote) -> None:
    """Write a connection file atomically.

    Raises:
        OSError: if it can't be written.
    """
    temporary = f"{path}.{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(content.as_json())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise


class MeshName:
    """The service that holds the claim to the mesh's name, and the connection file. Owned by the loop
    thread. The claim is held until this process has ended, for any reason."""

    def __init__(self, controller: Parts) -> None:
        self._controller = controller
        self._claim: Claim | None = None
        self._claim_path = ""
        self._connection_path = ""
        self._who = ""

    @handles(ClaimName)
    def do_claim(self, request: ClaimName, sender: Sender) -> bool:
        """Claim a name; answers whether it was free."""
        self._who = self._controller.clients.who(sender.proc)
        if self._claim is None:
            self._claim_path = request.path
            self._claim = Claim.acquire(self._claim_path, self._note(ClaimState.STARTING))
        return self._claim is not None

    @property
    def is_claimed(self) -> bool:
        """Whether this controller holds the claim to the name."""
        return self._claim is not None

    def _note(self, state: ClaimState) -> bytes:
        """Return the note in the claim's file, for processes that want the same name."""
        return ClaimNote(state, os.getpid(), self._who).as_json()

    def show(self, connection_path: str) -> None:
        """Make this mesh findable by programs."""
        assert self._claim is not None
        self._connection_path = connection_path
        self._write()
        self._claim.write(self._note(ClaimState.RUNNING))

    def _write(self) -> None:
        controller = self._controller
        content = ConnectionNote(
            controller.name,
            os.getpid(),
            controller.directory,
            start_time=start_time(os.getpid()),
            machine=machine_id(),
            hostname=controller.hostname,
            wire_version=wire.VERSION,
            started=controller.registry.started,
            journal=controller.journal.store.directory,
        )
        write_connection(self._connection_path, content)

    def stays(self) -> bool:
        """Ensure that programs can find this mesh: removed files are written again. False if another mesh has
        the name by now.
        """
        if self._claim is None or not self._connection_path:
            return True
        with suppress(OSError):
            if not self._claim.holds:
                again = Claim.acquire(self._claim_path, self._note(ClaimState.RUNNING))
                if again is None:
                    return False
                self._claim.release()
                self._claim = again
            if not os.path.lexists(self._connection_path):
                self._write()
        return True

    def hide(self) -> None:
        """Make a mesh that is about to end unfindable. Its name is free once its ranks and their resources
        are gone.
        """
        if self._claim is not None and self._claim.holds:
            with suppress(OSError):
                self._claim.write(self._note(ClaimState.ENDING))
            if self._connection_path:
                with suppress(OSError):
                    os.unlink(self._connection_path)

    def release(self) -> None:
        """Give the name up: the ranks have ended."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None
