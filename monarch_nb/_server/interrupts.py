"""Tells kernels which interrupts are meant for their cells.

A kernel that is shut down is interrupted first, and can't tell such an interrupt from the stop button's
(`monarch_nb._client.kernel`). The server can: of an interrupt that somebody has asked for it tells in an
event, of a shutdown's it doesn't. The kernel is told by a signal that is ignored by every process that has no
handler for it, so it may go to kernels that don't know us.
"""

from __future__ import annotations

from typing import Any

from jupyter_server.serverapp import ServerApp

from monarch_nb._client.kernel import CONFIRMED

SCHEMA = "https://events.jupyter.org/jupyter_server/kernel_actions/v1"


class InterruptWitness:
    """The observer of the server's events about kernels, until `close`."""

    def __init__(self, app: ServerApp) -> None:
        self._app = app
        app.event_logger.add_listener(schema_id=SCHEMA, listener=self._on_event)

    async def _on_event(self, logger: object, schema_id: str, data: dict[str, Any]) -> None:
        if data.get("action") == "interrupt" and data.get("status") == "success":
            await self._confirm(data.get("kernel_id", ""))

    async def _confirm(self, kernel_id: str) -> None:
        manager = self._app.kernel_manager
        if kernel_id not in manager:
            return
        kernel = manager.get_kernel(kernel_id)
        spec = kernel.kernel_spec
        if spec is not None and spec.language == "python" and kernel.has_kernel:
            await kernel.signal_kernel(int(CONFIRMED))

    def close(self) -> None:
        """Stop listening."""
        self._app.event_logger.remove_listener(schema_id=SCHEMA, listener=self._on_event)
