"""Controllers in Monarch's sense: named singletons of a mesh. The registry records in which process each
lives; the first program that asks for one spawns it there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.names import ControllerPlace, FindController
from monarch_nb._protocol.rank_spec import GroupSpec
from monarch_nb._protocol.ranks import Spawn
from monarch_nb._protocol.registry import Sender, handles
from monarch_nb._protocol.states import StartMethod

if TYPE_CHECKING:
    from monarch_nb._host.controller.ranks import RankService
    from monarch_nb._host.controller.registry import Client, Registry


class SingletonService:
    """The service that records in which process each named singleton lives. Owned by the loop thread.

    A controller lives in the program that uses the mesh: the one that asks, or, if a rank asks, the one that
    has been there longest. Without a program, and if whoever asks wants it to outlive programs, it's in a
    process of the controller's.
    """

    def __init__(self, registry: Registry, ranks: RankService, hostname: str) -> None:
        self._registry, self._ranks, self._hostname = registry, ranks, hostname
        self._known: dict[str, tuple[int, int]] = {}
        """Proc and actor id of each."""
        self._own_proc = 0

    @handles(FindController)
    def do_controller(self, request: FindController, sender: Sender) -> ControllerPlace:
        """Return where a named singleton lives. The first asker, whose actor id is taken, has to spawn it."""
        name = request.name
        known = self._known.get(name)
        is_new = known is None or not self._registry.lives(known[0])
        if known is None or is_new:
            proc = self._program(sender.proc) if request.in_program else 0
            known = self._known[name] = (proc or self._process(request.spec), request.proposed)
        return ControllerPlace(*known, is_new)

    def _program(self, asks: int) -> int:
        programs = {c.proc: c for c in self._registry.clients.values() if c.listens and not c.observes}
        return asks if asks in programs else next(iter(programs), 0)

    def _process(self, spec: GroupSpec) -> int:
        """Return the process for controllers on this host, started at the first request."""
        if not self._own_proc or not self._registry.lives(self._own_proc):
            (self._own_proc,) = self._ranks.spawn(Spawn([0], 1, "controllers", spec, StartMethod.FORK))
        return self._own_proc

    def client_gone(self, client: Client) -> None:
        """Forget the controllers of a program that has left, and tell all processes of their end."""
        gone = [name for name, (proc, _) in self._known.items() if proc == client.proc]
        if not gone:
            return
        for name in gone:
            del self._known[name]
        self._ranks.tell_end(
            RankExit(
                client.proc,
                "client",
                0,
                self._hostname,
                client.pid,
                stopped=True,
                reason=(
                    f"was the program {client.what!r}, which has left, and its controllers with it: "
                    f"{', '.join(gone)}"
                ),
            )
        )
