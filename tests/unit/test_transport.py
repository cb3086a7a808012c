"""A process' sockets by themselves."""

from __future__ import annotations

import threading
from pathlib import Path

from monarch_nb._transport.transport import Transport
from monarch_nb._wire import address

PATIENCE_S = 60.0
NUM_TRIES = 20


def test_two_may_close_at_once(tmp_path: Path) -> None:
    """Whoever stops a mesh, and whoever hears of its end: ZeroMQ never comes back from ending a context
    twice.
    """
    for _ in range(NUM_TRIES):
        transport = Transport(address.new_client_id(), str(tmp_path))
        transport.start()
        together = threading.Barrier(2)
        transport.on_close.append(lambda wait=together.wait: wait(PATIENCE_S))
        threads = [threading.Thread(target=transport.close, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert transport.closed
