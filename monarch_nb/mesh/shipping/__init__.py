"""Sends the notebook's environment to hosts.

packs           content in packs of 16 MiB (pure)
receiving       what an agent does with a pack: verify, write
agents          one on each host, for one piece of work
comparing       which packages hosts have otherwise
agent           a process on each host, in a group of its own: it has the host's store
host_broadcast  a pack from the notebook's machine to all agents, from agent to agent
sending         the whole: survey, what is missing, packs, prefixes, other zygotes
slow_links      whether hosts ask their package index (pure)
patching        some edited files to hosts that have all others
channel         a command that runs a shell on another machine, as a channel for bytes
bootstrap       the environment to machines that have no Python: first an interpreter
following       what is installed or edited from now on goes before the next cell
progress        how far it is, and which hosts are behind
plan            for a dry run: bytes, source and reason of each part
report          what was done, as data and as text
upkeep          the store of this machine, from a terminal

Names below are loaded when first used: they need the data plane and SQLite, which nobody is to wait for at a
start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch_nb.mesh.shipping.comparing import HostsDifference, compare_hosts
    from monarch_nb.mesh.shipping.following import FollowedEnvironment
    from monarch_nb.mesh.shipping.patching import patch_environment
    from monarch_nb.mesh.shipping.progress import Progress
    from monarch_nb.mesh.shipping.sending import scan_here, send_environment, with_scan
    from monarch_nb.mesh.shipping.upkeep import check_source, clean_here, export_here, send_to

_WHERE = {
    "FollowedEnvironment": "following",
    "HostsDifference": "comparing",
    "Progress": "progress",
    "check_source": "upkeep",
    "clean_here": "upkeep",
    "compare_hosts": "comparing",
    "export_here": "upkeep",
    "patch_environment": "patching",
    "scan_here": "sending",
    "send_environment": "sending",
    "send_to": "upkeep",
    "with_scan": "sending",
}

__all__ = [
    "FollowedEnvironment",
    "HostsDifference",
    "Progress",
    "check_source",
    "clean_here",
    "compare_hosts",
    "export_here",
    "patch_environment",
    "scan_here",
    "send_environment",
    "send_to",
    "with_scan",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    return found
