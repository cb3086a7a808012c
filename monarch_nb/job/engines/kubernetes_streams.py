"""Streams to pods through a Kubernetes API server: the output of commands, and connections to their ports.

The official client's own port forwarding reads what's to be sent without a bound; here, a sender waits.
"""

from __future__ import annotations

import select
import socket as sockets
import ssl
from contextlib import closing

import websocket
import yaml
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream, ws_client

from monarch_nb._client.ssh import Done
from monarch_nb.job.engines.base import EngineError
from monarch_nb.job.engines.kubernetes_api import TIMES_S, Api

BLOCK_BYTES = 1 << 16
_SILENT_S = 15
"""How long a server may be silent that should confirm what was sent."""
_DATA, _ERROR = 0, 1
_STATUS_CHANNEL = 3


def output_of(api: Api, pod: str, argv: list[str]) -> Done:
    """Run a command in a pod; return its result.

    Raises:
        EngineError: if the server refuses, or can't reach the pod.
    """
    try:
        ran = stream(
            api.core.connect_get_namespaced_pod_exec, pod, api.namespace, command=argv,
            stdin=False, stdout=True, stderr=True, tty=False, _preload_content=False,
        )  # fmt: skip
        with closing(ran):
            ran.run_forever(timeout=TIMES_S[1])
            out, err = ran.read_stdout(), ran.read_stderr()
            status = yaml.safe_load(ran.read_channel(_STATUS_CHANNEL)) or {}
    except (ApiException, websocket.WebSocketException, OSError, yaml.YAMLError) as error:
        raise EngineError(f"kubernetes: {' '.join(argv)} can't be run in pod {pod}: {_why(error)}") from None
    is_good = isinstance(status, dict) and status.get("status") == "Success"
    return Done(0 if is_good else 1, out, err or ("" if is_good else str(status.get("message", ""))))


def open_port(api: Api, pod: str, port: int) -> websocket.WebSocket:
    """Return a connection to a port of a pod, for `pump`.

    Raises:
        EngineError: if the server refuses, or can't reach the pod.
    """
    configuration = api.client.configuration
    headers = {"sec-websocket-protocol": ws_client.V4_CHANNEL_PROTOCOL}
    headers |= {each["key"].lower(): each["value"] for each in configuration.auth_settings().values()}
    path = f"{api.server}/api/v1/namespaces/{api.namespace}/pods/{pod}/portforward"
    url = ws_client.get_websocket_url(path, [("ports", str(port))])
    try:
        made = ws_client.create_websocket(configuration, url, headers)
        found: websocket.WebSocket = made
        _watch(made.sock)
        for _ in (_DATA, _ERROR):  # each channel begins with the number of the port
            found.recv_data_frame(True)
    except (websocket.WebSocketException, OSError, ValueError) as error:
        raise EngineError(
            f"kubernetes: port {port} of pod {pod} can't be reached through {api.server}: {_why(error)}"
        ) from None
    return found


def pump(local: sockets.socket, far: websocket.WebSocket) -> None:
    """Pass bytes both ways until either side ends.

    Raises:
        EngineError: with the server's message, if the port can't be connected to.
        OSError: if either connection is lost.
    """
    far_socket = far.sock
    assert far_socket is not None
    while True:
        has_more = isinstance(far_socket, ssl.SSLSocket) and far_socket.pending() > 0
        readable = select.select([local, far_socket], [], [], 0 if has_more else None)[0]
        if local in readable:
            block = local.recv(BLOCK_BYTES)
            if not block:
                return
            far.send(bytes((_DATA,)) + block, websocket.ABNF.OPCODE_BINARY)
        if has_more or far_socket in readable:
            opcode, frame = far.recv_data_frame(True)
            if opcode == websocket.ABNF.OPCODE_CLOSE:
                return
            if opcode == websocket.ABNF.OPCODE_BINARY and frame.data:
                if frame.data[0] == _ERROR:
                    raise EngineError(f"kubernetes: {frame.data[1:].decode(errors='replace').strip()}")
                local.sendall(frame.data[1:])


def _watch(connection: sockets.socket) -> None:
    """Have a connection end when nothing comes from the other side, as after a suspend."""
    connection.setsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE, 1)
    for option, value in ((sockets.TCP_KEEPIDLE, 5), (sockets.TCP_KEEPINTVL, 5), (sockets.TCP_KEEPCNT, 3)):
        connection.setsockopt(sockets.IPPROTO_TCP, option, value)
    connection.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_USER_TIMEOUT, _SILENT_S * 1000)
    connection.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)


def _why(error: BaseException) -> str:
    """Return the server's message, without its headers."""
    text = str(getattr(error, "reason", None) or error)
    words, _, rest = text.partition(" -+-+- ")
    message = rest.rpartition(" -+-+- ")[2].strip("b'")
    return f"{words.removeprefix('Handshake status ')} ({message})" if message else words
