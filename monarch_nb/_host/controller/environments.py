"""Keeps track of the environment that each host's ranks are started in. The controller keeps the registry,
each host starts a zygote in it.

Ranks that live keep what they were started in; those that are started from then on (by a restart, a heal, a
resize, another spawn) get the new one. A host process that takes a lost one's place is told when it joins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monarch_nb._protocol.environment import (
    EnvironmentSwitched,
    GetEnvironments,
    RankEnvironment,
    SetDifferences,
    SwitchEnvironment,
    UseEnvironments,
)
from monarch_nb._protocol.registry import LATER, Later, Sender, handles
from monarch_nb._wire import address

if TYPE_CHECKING:
    from monarch_nb._host.controller.hosts import HostService
    from monarch_nb._host.controller.sending import Sends
    from monarch_nb._host.controller.status_publisher import StatusPublisher
    from monarch_nb._host.loop import Loop

SWITCH_S = 120.0
"""Limit for the answer of a zygote."""


@dataclass
class _Switch:
    """A request to switch environments, answered when all hosts have reported."""

    src: int
    ref: int
    left: set[int]
    problems: dict[int, str] = field(default_factory=dict)


class EnvironmentService:
    """The service that records the environment of each host, and tells hosts to switch. Owned by the loop
    thread.
    """

    def __init__(self, hosts: HostService, status: StatusPublisher, loop: Loop, sends: Sends) -> None:
        self._hosts, self._status, self._loop, self._sends = hosts, status, loop, sends
        self._in_use: dict[int, RankEnvironment] = {}
        self._differences: dict[int, str] = {}
        self._switches: dict[int, _Switch] = {}
        self._num_switches = 0

    @handles(UseEnvironments)
    def do_use_environments(self, request: UseEnvironments, sender: Sender) -> dict[int, str] | Later:
        """Have hosts start ranks in other environments from now on; answers with the problems of failed
        hosts.
        """
        wanted = request.environments
        for index in wanted:
            self._hosts.get(index)
        if not wanted:
            return {}
        self._num_switches += 1
        number = self._num_switches
        self._switches[number] = _Switch(sender.proc, sender.ref, set(wanted))
        for index, environment in wanted.items():
            self._in_use[index] = environment  # before the request: this process' own host may answer at once
            self._hosts.ask(index, SwitchEnvironment(environment, number))
        self._loop.call_later(SWITCH_S, lambda: self._give_up(number))
        return LATER

    @handles(GetEnvironments)
    def do_get_environments(self, request: GetEnvironments, sender: Sender) -> dict[int, RankEnvironment]:
        """Return the environments that hosts start ranks in, by host; those that have never been told aren't
        in it."""
        return dict(self._in_use)

    def id_on(self, host: int) -> str:
        """Return the id of the environment in which a host starts ranks; "" for the one that it was started
        in itself.
        """
        found = self._in_use.get(host)
        return "" if found is None else found.id

    @handles(SetDifferences)
    def do_set_differences(self, request: SetDifferences, sender: Sender) -> None:
        """Record the differences between hosts and a notebook: they are shown with the hosts' state."""
        self._differences |= request.differences
        self._status.touch()

    def difference_of(self, host: int) -> str:
        """Return the differences between a host and the notebook that has compared it last; "" if there are
        none.
        """
        return self._differences.get(host, "")

    @handles(EnvironmentSwitched)
    def on_environment_switched(self, event: EnvironmentSwitched, sender: Sender) -> None:
        """Handle another host's report about its new zygote."""
        self.switched(address.host_of(sender.proc), event.number, event.problem)

    def switched(self, host: int, number: int, problem: str) -> None:
        """Record a host's report about its new zygote; answer the request once all hosts have reported."""
        if problem:
            self._in_use.pop(host, None)
            self._differences[host] = (
                f"it can't run ranks in the environment that it was sent ({problem}): %mesh sync --env, then "
                "%mesh restart"
            )
        else:
            self._differences.pop(host, None)
        switch = self._switches.get(number)
        if switch is not None and host in switch.left:
            switch.left.discard(host)
            if problem:
                switch.problems[host] = problem
            if not switch.left:
                self._answer(number)

    def joined(self, host: int) -> None:
        """Handle a new host process: one that replaces another starts ranks in the other's environment, and
        may differ from a notebook in other respects.
        """
        self._differences.pop(host, None)
        if host in self._in_use:
            self._hosts.ask(host, SwitchEnvironment(self._in_use[host], 0))

    def lost(self, host: int) -> None:
        """Answer requests that wait for a lost host. A replacement shall use its environment."""
        for number, switch in list(self._switches.items()):
            if host in switch.left:
                kept = self._in_use.get(host)
                self.switched(host, number, "it was lost meanwhile")
                if kept is not None:
                    self._in_use[host] = kept

    def _give_up(self, number: int) -> None:
        switch = self._switches.get(number)
        for host in list(switch.left) if switch is not None else ():
            self.switched(host, number, f"its zygote has not answered within {SWITCH_S:g} s")

    def _answer(self, number: int) -> None:
        switch = self._switches.pop(number)
        self._status.touch()
        self._sends.reply(switch.src, switch.ref, switch.problems)
