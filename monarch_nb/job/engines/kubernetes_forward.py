"""`python -m monarch_nb.job.engines.kubernetes_forward`: leads a socket of this machine to a port of a job's
pod, through the API server. It ends with the pod, and when the server can't be reached.

Arguments: the socket's path, the port, and JSON of the profile's own settings and of the job's name.
"""

from __future__ import annotations

import json
import os
import signal
import socket as sockets
import sys
import threading
from contextlib import suppress

import websocket

from monarch_nb.job.engines.base import EngineError
from monarch_nb.job.engines.kubernetes_api import Api
from monarch_nb.job.engines.kubernetes_streams import open_port, pump
from monarch_nb.job.spec import HostSpec


def command(spec: HostSpec, job: str, socket: str, address: str) -> list[str]:
    """Return the words of this command.

    Args:
        address: `tcp://HOST:PORT` of the pod.
    """
    port, asked = address.rpartition(":")[2], json.dumps({"own": dict(spec.own), "job": job})
    return [sys.executable, "-P", "-m", __name__, socket, port, asked]


def main() -> int:
    """Serve until the way is lost; return the exit status."""
    path, port, asked = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        api = Api(HostSpec("kubernetes", own=tuple(asked["own"].items())))
        pod = api.running_pod(asked["job"])
        if not pod:
            raise EngineError(f"kubernetes: no pod of job {asked['job']} runs in namespace {api.namespace}")
        first = open_port(api, pod, port)  # before anybody comes: an error is told at once
    except EngineError as error:
        print(error, file=sys.stderr)
        return 1
    with suppress(FileNotFoundError):
        os.unlink(path)
    before = os.umask(0o177)
    with sockets.socket(sockets.AF_UNIX) as listener:
        listener.bind(path)
        os.umask(before)
        listener.listen()
        far: websocket.WebSocket | None = first
        while True:
            local = listener.accept()[0]
            try:
                far = far or open_port(api, pod, port)
            except EngineError as error:
                print(error, file=sys.stderr)
                return 1
            threading.Thread(target=_serve, args=(local, far), daemon=True).start()
            far = None


def _serve(local: sockets.socket, far: websocket.WebSocket) -> None:
    try:
        pump(local, far)
    except EngineError as error:  # nobody listens there (any more): whoever has started this waits a while
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
    except (OSError, websocket.WebSocketException):
        pass  # who has connected does so again
    finally:
        local.close()
        far.close()


if __name__ == "__main__":
    sys.exit(main())
