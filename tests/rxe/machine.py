"""A virtual machine with a Soft-RoCE device: the distribution's kernel on this machine's own file system.

The kernel package is downloaded and unpacked, never installed. The file system is seen read-only over 9p;
what is written goes to memory of the machine. Only the job's folder is written through.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import psutil

HERE = Path(__file__).parent
TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "modprobe": "kmod",
    "depmod": "kmod",
    "cpio": "cpio",
    "rdma": "iproute2",
    "dpkg-deb": "dpkg",
    "apt-get": "apt",
}
"""What it takes, and the package that has it."""
EARLY_MODULES = ("virtio_pci", "virtio-rng", "9pnet_virtio", "9p", "overlay")
"""What the kernel needs before it sees a file system."""
SBIN = ":/usr/sbin:/sbin"
MIN_FREE_BYTES = 4 << 30
"""What is seen as the machine's memory; it uses about half of it."""


class CannotBoot(Exception):
    """This machine lacks something."""


def what_is_missing() -> str:
    """Return why no such machine can be booted here; empty if one can."""
    if os.uname().machine != "x86_64":
        return f"the virtual machine is x86_64, this one is {os.uname().machine}"
    missing = sorted({package for tool, package in TOOLS.items() if tool_path(tool) is None})
    if missing:
        return f"missing: apt-get install {' '.join(missing)}"
    if psutil.virtual_memory().available < MIN_FREE_BYTES:
        return f"it wants {MIN_FREE_BYTES >> 30} GiB of memory that is free"
    if os.geteuid() != 0:
        return "only root's files can all be seen from within: run as root"
    return ""


def tool_path(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + SBIN)


def call(*command: str, folder: Path | None = None) -> str:
    """Run a tool and return what it prints.

    Raises:
        CannotBoot: with its last words.
    """
    program = tool_path(command[0])
    assert program is not None, command
    done = subprocess.run([program, *command[1:]], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBoot(f"{shlex.join(command)}: {done.stderr.strip()[-500:]}")
    return done.stdout


def cache_folder() -> Path:
    """Where the unpacked kernel is kept from one run to the next."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "monarch_nb" / "rxe"


def kernel_package() -> str:
    """Return the name of the newest kernel's package."""
    found = re.search(r"Depends: (linux-image-\S+)", call("apt-cache", "depends", "linux-image-amd64"))
    if found is None:
        raise CannotBoot("apt knows no kernel package: apt-get update")
    return found[1]


class Machine:
    """Kernel and first file system, ready to boot."""

    def __init__(self) -> None:
        package = kernel_package()
        self.folder = cache_folder() / package
        self.root = self.folder / "kernel"
        if not self.folder.exists():
            self._unpack(package)
        (self.kernel,) = (self.root / "boot").glob("vmlinuz-*")
        self.modules = self.root / "lib" / "modules"
        self.release = self.kernel.name.removeprefix("vmlinuz-")

    def _unpack(self, package: str) -> None:
        """Fill a folder beside it and rename that: others may be at it, too."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder.parent) as name:
            fresh = Path(name) / "fresh"
            root = fresh / "kernel"
            root.mkdir(parents=True)
            call("apt-get", "-q", "download", package, folder=fresh)
            (deb,) = fresh.glob("*.deb")
            call("dpkg-deb", "-x", str(deb), str(root))
            deb.unlink()
            call("depmod", "-b", str(root), next((root / "lib" / "modules").iterdir()).name)
            with contextlib.suppress(OSError):  # somebody else was first
                os.rename(fresh, self.folder)

    def _pack_initrd(self, tree: Path) -> Path:
        for name in ("bin", "modules", "proc", "sys", "dev", "host", "memory", "root"):
            (tree / name).mkdir(parents=True)
        shutil.copy(str(tool_path("busybox")), tree / "bin" / "busybox")
        shutil.copy(HERE / "first_init.sh", tree / "init")
        (tree / "init").chmod(0o755)
        names = []
        for file in self._early_files():
            shutil.copy(file, tree / "modules")
            names.append(os.path.basename(file))
        (tree / "modules" / "order").write_text("".join(f"{name}\n" for name in names))
        listing = "\n".join(str(p.relative_to(tree)) for p in sorted(tree.rglob("*")))
        command = [str(tool_path("cpio")), "--quiet", "-o", "-H", "newc"]
        packed = subprocess.run(command, cwd=tree, input=listing.encode(), capture_output=True, check=True)
        initrd = tree.with_suffix(".gz")
        initrd.write_bytes(gzip.compress(packed.stdout, 1))
        return initrd

    def _early_files(self) -> list[str]:
        files: dict[str, None] = {}
        for module in EARLY_MODULES:
            for line in call("modprobe", "-D", "-d", str(self.root), "-S", self.release, module).splitlines():
                kind, _, file = line.strip().partition(" ")
                if kind == "insmod":
                    files[file.split()[0]] = None
        return list(files)

    def run(
        self,
        command: list[str],
        job: Path,
        folders: list[Path],
        timeout_s: float,
        num_cpus: int = 2,
        memory: str = "4G",
    ) -> int:
        """Boot, run a command inside, and return its exit status.

        It finds `job` as the folder `/run/job`, may leave files there, and imports from `folders`.

        Raises:
            CannotBoot: with the end of the console, if no exit status came back.
        """
        environment = {"PATH": os.environ["PATH"] + SBIN, "PYTHONPATH": os.pathsep.join(map(str, folders))}
        lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
        lines += [f"MODULES={shlex.quote(str(self.modules))}", f"command() {{ {shlex.join(command)}; }}"]
        (job / "job.sh").write_text("\n".join(lines) + "\n")
        shutil.copy(HERE / "second_init.sh", job)
        initrd = self._pack_initrd(job / "initrd")
        console = job / "console.txt"
        process = subprocess.Popen(
            self._qemu(job, initrd, console, num_cpus, memory),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            output = process.communicate()[0] + f"\nstopped after {timeout_s:g} s"
        status = job / "status"
        if not status.exists():
            end = console.read_text(errors="replace")[-3000:] if console.exists() else ""
            raise CannotBoot(
                f"no exit status came back from the virtual machine. qemu: {output}; its console:\n{end}"
            )
        return int(status.read_text())

    def _qemu(self, job: Path, initrd: Path, console: Path, num_cpus: int, memory: str) -> list[str]:
        shares = []
        for tag, path, more in (("host", "/", ",readonly=on"), ("job", str(job), "")):
            shares += ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{more}"]
            shares += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        return [
            str(tool_path("qemu-system-x86_64")),
            "-M",
            "q35",
            *accelerator(),
            "-smp",
            str(num_cpus),
            "-m",
            memory,
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-monitor",
            "none",
            "-no-reboot",
            "-kernel",
            str(self.kernel),
            "-initrd",
            str(initrd),
            "-append",
            "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr tsc=reliable",
            "-serial",
            f"file:{console}",
            "-device",
            "virtio-rng-pci",
            *shares,
        ]


def accelerator() -> list[str]:
    """KVM where the processor has it: a `/dev/kvm` without boots only kernels that were built for it."""
    flags = Path("/proc/cpuinfo").read_text()
    if re.search(r"^flags.*\b(vmx|svm)\b", flags, re.MULTILINE) and os.access("/dev/kvm", os.R_OK | os.W_OK):
        return ["-accel", "kvm", "-cpu", "host"]
    return ["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,la57=off"]
