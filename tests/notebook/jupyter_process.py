"""A Jupyter server, as people run one: a process of its own, driven by REST."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from kernels import Messages
from waiting import wait_for_server


class JupyterServer:
    """A server with our extension."""

    def __init__(self, root: Path) -> None:
        self._runtime = Path(os.environ["JUPYTER_RUNTIME_DIR"])
        with open(root / "server.log", "w") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "jupyter_server",
                    "--no-browser",
                    "--allow-root",
                    "--ip=127.0.0.1",
                    "--ServerApp.port=0",
                    "--IdentityProvider.token=T",
                    f"--ServerApp.root_dir={root}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._url = (
            f"http://127.0.0.1:{wait_for_server(self.process, self._runtime, root / 'server.log')}/api"
        )

    def rest(self, method: str, path: str, body: object = None) -> Any:
        """Call the server; return what it answers."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self._url}/{path}", data, {"Authorization": "token T"}, method=method
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def close(self) -> None:
        """End it and its kernels, as `kill` does."""
        self.process.terminate()
        self.process.wait(60)


class ServedKernel(Messages):
    """A kernel of a server."""

    def __init__(self, server: JupyterServer) -> None:
        self._server = server
        self.id = server.rest("POST", "kernels", {"name": "python3"})["id"]
        client = BlockingKernelClient(
            connection_file=str(Path(os.environ["JUPYTER_RUNTIME_DIR"]) / f"kernel-{self.id}.json")
        )
        client.load_connection_file()
        super().__init__(client)

    def ask(self, action: str) -> None:
        """Have the server do something with it: "restart", "interrupt"."""
        self._server.rest("POST", f"kernels/{self.id}/{action}", {})

    def delete(self) -> None:
        """Have the server shut it down."""
        self._server.rest("DELETE", f"kernels/{self.id}")
