"""A real Slurm of a test's own: a controller and three nodes on this machine, with their own munge, ports
and files.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from processes import TAG
from waiting import wait_until

_NEEDED = ("slurmctld", "slurmd", "sbatch", "munged")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def why_not() -> str:
    """Return why there's no Slurm here; empty if there can be one."""
    missing = [name for name in _NEEDED if shutil.which(name, path=_PATH) is None]
    if missing:
        return f"no {missing[0]}: apt-get install slurmctld slurmd slurm-client munge"
    return "" if os.getuid() == 0 else "Slurm of a test's own needs root here"


def _free_ports(num: int) -> list[int]:
    probes = [socket.socket() for _ in range(num)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


class Cluster:
    """Three nodes n1 to n3 with two cores and two GPUs each; a partition of all, and one that gives a minute.

    Attributes:
        config: what SLURM_CONF names.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.config = folder, folder / "slurm.conf"
        folder.chmod(0o755)
        for name in ("state", "log", "munge", "socket"):
            (folder / name).mkdir()
        (folder / "munge").chmod(0o700)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._start_munge()
        self._write_config()
        environment = {**os.environ, "PATH": _PATH, "SLURM_CONF": str(self.config)}
        self._run(["slurmctld", "-D", "-c", "-i"], environment)
        for i in (1, 2, 3):
            self._run(["slurmd", "-D", "-N", f"n{i}"], environment)
        wait_until(lambda: self.idle_nodes() == 3, f"three idle nodes: {folder}/log")

    def _start_munge(self) -> None:
        key, socket_path = self.folder / "munge" / "key", self.folder / "socket" / "s"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = [
            f"--{name}={self.folder}/munge/{name.split('-')[0]}"
            for name in ("pid-file", "log-file", "seed-file")
        ]
        self._run(
            ["munged", "--foreground", "--force", f"--socket={socket_path}", f"--key-file={key}", *files],
            {**os.environ, "PATH": _PATH},
        )
        wait_until(socket_path.exists, "munged that listens")

    def _write_config(self) -> None:
        host, folder = socket.gethostname().partition(".")[0], self.folder
        control, *ports = _free_ports(4)
        nodes = "".join(
            (
                f"NodeName=n{i} NodeAddr=127.0.0.1 NodeHostname={host} Port={port} CPUs=2 RealMemory=2000 "
                "Gres=gpu:2\n"
            )
            for i, port in enumerate(ports, 1)
        )
        self.config.write_text(
            f"ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={control}\n"
            f"AuthType=auth/munge\nAuthInfo=socket={folder}/socket/s\nCredType=cred/munge\n"
            f"SlurmUser=root\nSlurmdUser=root\nStateSaveLocation={folder}/state\n"
            f"SlurmdSpoolDir={folder}/spool.%n\nSlurmctldPidFile={folder}/ctld.pid\n"
            f"SlurmdPidFile={folder}/d.%n.pid\nSlurmctldLogFile={folder}/log/ctld\n"
            f"SlurmdLogFile={folder}/log/d.%n\nSlurmdParameters=config_overrides\n"
            "SchedulerParameters=sched_min_interval=100000,bf_interval=1\n"
            "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core_Memory\n"
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\n"
            "ReturnToService=2\nSlurmdTimeout=30\nKillWait=2\nMinJobAge=300\n"
            "PropagateResourceLimits=NONE\nJobCompType=jobcomp/none\nGresTypes=gpu\n"
            f"{nodes}PartitionName=main Nodes=n[1-3] Default=YES MaxTime=INFINITE State=UP "
            "DefMemPerNode=500\nPartitionName=short Nodes=n[1-2] MaxTime=1 State=UP "
            "DefMemPerNode=500\n"
        )
        for i in (0, 1):  # devices without a driver: how GPUs are given out is real
            subprocess.run(["mknod", f"{folder}/nvidia{i}", "c", "195", str(i)], check=True)
        (folder / "gres.conf").write_text(f"NodeName=n[1-3] Name=gpu File={folder}/nvidia[0-1]\n")
        (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")

    def _run(self, argv: list[str], environment: dict[str, str]) -> None:
        with open(self.folder / "log" / "started", "ab") as log:
            self._processes.append(
                subprocess.Popen(argv, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            )

    def command(self, *argv: str) -> str:
        """Run a command of Slurm; return what it writes."""
        return subprocess.run(
            argv,
            env={**os.environ, "SLURM_CONF": str(self.config)},
            capture_output=True,
            text=True,
            timeout=30,
        ).stdout.strip()

    def idle_nodes(self) -> int:
        """Count the nodes that have nothing to do."""
        return sum(
            int(line.split(",")[1])
            for line in self.command("sinfo", "-h", "-p", "main", "-o", "%T,%D").splitlines()
            if line.startswith("idle,")
        )

    def close(self) -> None:
        """Cancel all jobs, and end all daemons."""
        self.command("scancel", "--user=root")
        with suppress(AssertionError):
            wait_until(lambda: not self.command("squeue", "-h"), "an empty queue", 15)
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


SETUP = f"export {'='.join(TAG)}"
"""What a job has to say for its processes to be known as this run's."""
