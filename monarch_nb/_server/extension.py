"""The extension that `jupyter server` loads."""

from __future__ import annotations

from jupyter_server.extension.application import ExtensionApp

from monarch_nb._server import page
from monarch_nb._server.interrupts import InterruptWitness
from monarch_nb._server.meshes import Meshes
from monarch_nb._server.metrics import MeshCollector, register, unregister
from monarch_nb._server.routes import routes
from monarch_nb._version import __version__


class MeshExtension(ExtensionApp):
    """Meshes over REST and a WebSocket."""

    name = "monarch_nb"
    version = __version__
    extension_url = "/monarch_nb/api/version"
    load_other_extensions = True
    _collector: MeshCollector | None = None
    _witness: InterruptWitness | None = None
    _meshes: Meshes

    def initialize_settings(self) -> None:
        """Create the objects that the handlers share."""
        self._meshes = Meshes()
        self.settings["monarch_nb_meshes"] = self._meshes
        self._collector = register(self._meshes.pool)
        if self.serverapp is not None:
            self._witness = InterruptWitness(self.serverapp)

    def initialize_handlers(self) -> None:
        """Register the handlers of all addresses."""
        self.handlers.extend([*routes(), *page.routes()])

    async def stop_extension(self) -> None:
        """Close everything that the extension has opened."""
        if self._collector is not None:
            unregister(self._collector)
            self._collector = None
        if self._witness is not None:
            self._witness.close()
            self._witness = None
        self._meshes.close()
