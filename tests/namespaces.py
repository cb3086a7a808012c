"""Hosts that are network namespaces of this machine: each with its own addresses, joined by a bridge to
ours.
"""

from __future__ import annotations

import os
import shutil
import subprocess


def why_not() -> str:
    """Return why there can't be any here; empty if there can."""
    if shutil.which("ip") is None:
        return "no ip: apt-get install iproute2"
    if os.getuid() != 0:
        return "network namespaces need root"
    done = subprocess.run(["ip", "netns", "add", "mnbprobe"], capture_output=True, text=True)
    if done.returncode:
        return f"no network namespaces here: {done.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", "mnbprobe"], check=True)
    return ""


def run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)


class Namespaces:
    """`num` hosts, each by a link of its own to this machine: IPv4 10.NET.I.2 and IPv6 fdNET:I::2; ours end
    in 1.

    Args:
        net: another number for each file of tests that may run at the same time.
    """

    def __init__(self, num: int, net: int = 91) -> None:
        self.prefix = f"mnb{os.getpid() % 10000}x"
        self.names = [f"{self.prefix}{i}" for i in range(1, num + 1)]
        for i, name in enumerate(self.names, 1):
            run(f"ip netns add {name}")
            run(f"ip link add {name} type veth peer name eth0 netns {name}")
            run(f"ip addr add 10.{net}.{i}.1/24 dev {name}")
            run(f"ip -6 addr add fd{net}:{i}::1/64 dev {name} nodad")
            run(f"ip link set {name} up")
            for command in (
                f"addr add 10.{net}.{i}.2/24 dev eth0", f"-6 addr add fd{net}:{i}::2/64 dev eth0 nodad",
                "link set lo up", "link set eth0 up",
                f"route add default via 10.{net}.{i}.1", f"-6 route add default via fd{net}:{i}::1",
            ):  # fmt: skip
                run(f"ip -n {name} {command}")

    def cut(self, name: str) -> None:
        """Pull a host's cable."""
        run(f"ip link set {name} down")

    def without_v4(self, name: str) -> None:
        """Leave a host its IPv6 address only."""
        run(f"ip -n {name} -4 addr flush dev eth0")

    def pids(self, name: str) -> list[int]:
        """Return the processes in a host."""
        return [
            int(p)
            for p in subprocess.run(
                ["ip", "netns", "pids", name], capture_output=True, text=True
            ).stdout.split()
        ]

    def close(self) -> None:
        """Remove them."""
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            subprocess.run(["ip", "link", "del", name], capture_output=True)
