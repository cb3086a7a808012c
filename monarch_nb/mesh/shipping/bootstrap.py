"""Sends the notebook's environment to machines without Python: `sh` and `tar` are enough.

Three scripts run there, one after the other: one says where the store is, and whether an interpreter is in
it; `tar` unpacks our receiver (`_sync/env/arrival`), and an interpreter if there's none; that one receives
the environment, and removes what was unpacked.
"""

from __future__ import annotations

import importlib.resources
import io
import re
import secrets
import shlex
import tarfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from monarch_nb._sync.env.arrival import SHIPPED, STANDS_FOR, Order
from monarch_nb._sync.env.bytecode import PINNED_S
from monarch_nb._sync.env.errors import EnvironmentSyncError
from monarch_nb._sync.env.local import changed
from monarch_nb._sync.env.manifest import EXECUTABLE, FILE, LINK, Entry
from monarch_nb._sync.env.scan import Scanned
from monarch_nb._sync.env.treatment import RAW, Source, Treater
from monarch_nb._units import elapsed_text, size_text
from monarch_nb.mesh.shipping.channel import Channel, try_script
from monarch_nb.mesh.shipping.progress import Progress

AT_ONCE = 8
LOOK_S = 60.0
COMPARE_S = 300.0
PLACE_S = 900.0
_SHORT = 6
_BLOCK_BYTES = 1 << 20
_PYTHON = re.compile(r"bin/python3\.\d+t?")
_NOT_NEEDED = re.compile(r"include/|share/|.*/site-packages/")
_MARKED = 'printf \'monarch_nb-arrival {"python": "%s"}\\n\''
_LOOK = f"""command -v tar >/dev/null || {{ echo 'there is no tar there: install it' >&2; exit 1; }}
s=${{MONARCH_NB_STORE:-${{XDG_CACHE_HOME:-$HOME/.cache}}/monarch_nb/store}}
for m in "$s"/envs/*.manifest; do
    for p in "${{m%.manifest}}/base/bin/python3" "${{m%.manifest}}/env/bin/python"; do
        if [ -x "$p" ]; then {_MARKED} "$p"; exit 0; fi
    done
done
{_MARKED} ''"""
_UNPACK = 'umask 077; cd "${TMPDIR:-/tmp}" && exec tar -xf -'
_RUN = (
    "import sys; sys.path.insert(0, sys.argv[1] + '/agent'); "
    "from monarch_nb._sync.env.arrival import main; main(sys.argv[1])"
)


@dataclass(frozen=True)
class Arrived:
    """The outcome of sending an environment to a machine.

    Attributes:
        machine: name of the machine, as the user gave it.
        prefix, python: where the environment is, and its interpreter; "" if it isn't there.
        was_there: whether it was there already.
        sent_bytes: bytes sent over the channel: content, and an interpreter to receive it.
        seconds: duration.
        problem: why the environment isn't there; "" if it is.
        warnings: restrictions of the environment there.
        link: path of the link to it; "" if none was requested.
    """

    machine: str
    prefix: str = ""
    python: str = ""
    was_there: bool = False
    sent_bytes: int = 0
    seconds: float = 0.0
    problem: str = ""
    warnings: tuple[str, ...] = ()
    link: str = ""


@dataclass(frozen=True)
class ArrivedPart:
    """The part of a sync's receipt about machines that don't belong to the mesh yet.

    Attributes:
        id: of the environment; 64 hexadecimal digits.
        num_packages, num_bytes: size of the environment.
        machines: in the order in which they were named.
        is_dry: whether nothing was done.
    """

    id: str
    num_packages: int
    num_bytes: int
    machines: tuple[Arrived, ...]
    is_dry: bool = False

    @property
    def is_done(self) -> bool:
        """Say whether all machines have it."""
        return not self.is_dry and not any(each.problem for each in self.machines)

    def lines(self) -> list[str]:
        """Return the outcome for each machine as lines, with what to type next."""
        return [f"[{each.machine}] {text}" for each in self.machines for text in self._lines(each)]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    __repr__ = __str__

    def _lines(self, each: Arrived) -> Iterator[str]:
        what = f"environment {self.id[:_SHORT]}, {self.num_packages} packages, {size_text(self.num_bytes)}"
        if self.is_dry:
            yield f"{what}: at most {size_text(self.num_bytes)} to send"
        elif each.problem:
            yield f"{what}: not there, {each.problem}"
        else:
            sent = "is there already" if each.was_there else f"{size_text(each.sent_bytes)} sent, verified"
            named = f"at {each.link}, too" if each.link else f'in the profile: python = "{each.python}"'
            yield f"{what}: {sent} ({elapsed_text(each.seconds)}); {named}"
            yield from each.warnings


def place_on(
    machines: Sequence[str],
    scanned: Scanned,
    modules: Sequence[str],
    *,
    same_path: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ArrivedPart:
    """Send the environment of this program to machines, which need only `sh` and `tar`.

    Args:
        machines: names of hosts for ssh, or commands that run a shell.
        scanned: the environment.
        modules: what an environment is tried with there.
        same_path: make a link at the environment's own path on each machine.
        dry_run: only say what would be sent at most.

    Raises:
        MeshUsageError: if no command can be made of a machine's name.
        EnvironmentSyncError: if a distribution's Python is needed, or a file here has changed. What machines
            can't do is in the result.
    """
    if scanned.manifest.facts.get("system_python"):
        raise EnvironmentSyncError(
            "this environment runs the distribution's own Python, which belongs to its machine and can't go "
            "to one without: make one with an interpreter of its own (uv venv --managed-python, conda create)"
        )
    progress = progress or Progress()
    link = scanned.roots.get("env", "") if same_path else ""
    found: list[Arrived] = [Arrived(machine) for machine in machines]
    if not dry_run:
        progress.begin_sending(dict.fromkeys(range(len(machines)), 0))
        sendings = [_Sending(name, i, scanned, modules, link, progress) for i, name in enumerate(machines)]
        with ThreadPoolExecutor(AT_ONCE, "monarch_nb-sync-to") as pool:
            found = list(pool.map(_Sending.run, sendings))
    num_packages = sum(bool(part.version) for part in scanned.manifest.parts)
    return ArrivedPart(scanned.manifest.id, num_packages, scanned.num_bytes, tuple(found), dry_run)


class _Sending:
    """The sending of the environment to one machine."""

    def __init__(
        self,
        machine: str,
        index: int,
        scanned: Scanned,
        modules: Sequence[str],
        link: str,
        progress: Progress,
    ) -> None:
        self._machine = machine
        self._index = index
        self._scanned = scanned
        self._modules = tuple(modules)
        self._link = link
        self._progress = progress
        self._treater = Treater(scanned.roots)
        self._name = f"monarch_nb-{secrets.token_hex(16)}"
        self._num_sent = 0

    def run(self) -> Arrived:
        """Send the environment to the machine; return the outcome.

        Raises:
            EnvironmentSyncError: if a file here has changed.
        """
        start = time.monotonic()
        fields: dict[str, Any] = {}
        try:
            python = self._look()
            try:
                self._unpack(has_python=bool(python))
                fields = self._send(python)
            finally:
                if not fields:  # otherwise the receiver has removed it
                    try_script(self._machine, f'rm -rf "${{TMPDIR:-/tmp}}/{self._name}"')
        except EnvironmentSyncError as error:
            self._progress.left_out(self._index)
            fields = {"problem": str(error)}
        if wrong := fields.pop("wrong", None):
            raise changed(self._scanned.sources[wrong[0]].file)
        fields["warnings"] = tuple(fields.get("warnings", ()))
        seconds = time.monotonic() - start
        return Arrived(self._machine, **fields, sent_bytes=self._num_sent, seconds=seconds, link=self._link)

    def _look(self) -> str:
        """Return the path of the interpreter in the machine's store; "" if there is none."""
        with Channel(self._machine, _LOOK) as channel:
            channel.finish()
            return str(channel.answer(LOOK_S)["python"])

    def _unpack(self, *, has_python: bool) -> None:
        with Channel(self._machine, _UNPACK) as channel:
            with suppress(BrokenPipeError), _archive(_Counted(channel, self)) as archive:
                _add_folder(archive, self._name)
                for path, content in _receiver_files():
                    _add(archive, f"{self._name}/agent/{path}", content)
                for entry in () if has_python else interpreter_entries(self._scanned):
                    self._add_entry(archive, entry)
            channel.wait_for_end()

    def _add_entry(self, archive: tarfile.TarFile, entry: Entry) -> None:
        path = f"{self._name}/{entry.path}"
        if entry.kind == LINK:
            info = _info(path, 0, 0o777)
            info.type, info.linkname = tarfile.SYMTYPE, entry.content
            archive.addfile(info)
            return
        content = self._treater.read(self._scanned.sources[entry.content]).content
        _add(archive, path, content, 0o700 if entry.kind == EXECUTABLE else 0o600)

    def _send(self, python: str) -> dict[str, Any]:
        """Communicate with the receiver; return its final report."""
        own = f'"${{TMPDIR:-/tmp}}/{self._name}"'
        run = shlex.quote(python) if python else f"{own}/{self._own_python()}"
        with Channel(self._machine, f"exec {run} -I -S -B -c {shlex.quote(_RUN)} {own}") as channel:
            scanned = self._scanned
            texts = [part.text for part in scanned.parts.values()]
            manifest = scanned.manifest.text
            order = Order(len(manifest), tuple(map(len, texts)), self._modules, self._link)
            with suppress(BrokenPipeError):
                channel.write(b"".join((order.line(), manifest, *texts)))
            answer = channel.answer(COMPARE_S)
            if "problem" in answer:
                return answer
            missing: dict[str, int] = answer["missing"]
            self._progress.begin_sending({self._index: sum(missing.values())})
            with suppress(BrokenPipeError):
                for sha256, size in missing.items():
                    self._send_content(channel, scanned.sources[sha256], size)
                channel.finish()
            ended = channel.answer(PLACE_S)
            was_there, notes = answer.get("was_there", False), answer.get("warnings", [])
            return {"was_there": was_there, "warnings": notes, **ended}

    def _send_content(self, channel: Channel, source: Source, size: int) -> None:
        """Send one content: exactly the expected number of bytes, whatever is read."""
        left = size
        for block in _blocks(self._treater, source):
            self.count(channel.write(block[:left]))
            left -= len(block[:left])
        if left:
            raise changed(source.file)
        self._progress.took(self._index, size)

    def _own_python(self) -> str:
        found = [
            entry.path
            for entry in interpreter_entries(self._scanned)
            if entry.kind == EXECUTABLE and _PYTHON.fullmatch(entry.path.partition("/")[2])
        ]
        if not found:
            raise EnvironmentSyncError("this environment has no interpreter that could be sent")
        return found[0]

    def count(self, num_bytes: int) -> None:
        """Record the number of sent bytes."""
        self._num_sent += num_bytes


class _Counted(io.RawIOBase):
    """The byte counter of a channel."""

    def __init__(self, channel: Channel, sending: _Sending) -> None:
        self._channel = channel
        self._sending = sending

    def write(self, data: Any, /) -> int:
        num = self._channel.write(data)
        self._sending.count(num)
        return num


def interpreter_entries(scanned: Scanned) -> list[Entry]:
    """Return the entries that the interpreter of an environment needs to run a program without packages."""
    layer = "base" if "base" in scanned.roots else "env"
    return [
        entry
        for part in scanned.parts.values()
        for entry in part.entries
        if entry.path.startswith(f"{layer}/")
        and entry.kind in (FILE, EXECUTABLE, LINK)
        and not _NOT_NEEDED.match(entry.path.removeprefix(f"{layer}/"))
    ]


def _receiver_files() -> Iterator[tuple[str, bytes]]:
    """Yield the files of the package that the receiver runs from."""
    for path, text in STANDS_FOR.items():
        yield f"monarch_nb/{path}", text.encode()
    root = importlib.resources.files("monarch_nb")
    for module in SHIPPED:
        path = module.replace(".", "/")
        is_package = root.joinpath(path).is_dir()
        file = f"{path}/__init__.py" if is_package else f"{path}.py"
        yield f"monarch_nb/{file}", root.joinpath(file).read_bytes()


def _blocks(treater: Treater, source: Source) -> Iterator[bytes]:
    if source.treatment != RAW:
        yield treater.read(source).content
        return
    with open(source.file, "rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def _archive(file: io.RawIOBase) -> tarfile.TarFile:
    return tarfile.open(fileobj=file, mode="w|", format=tarfile.GNU_FORMAT)  # long names: all tars read these


def _info(path: str, size: int, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.size, info.mode, info.mtime = size, mode, PINNED_S
    return info


def _add_folder(archive: tarfile.TarFile, path: str) -> None:
    info = _info(path, 0, 0o700)
    info.type = tarfile.DIRTYPE
    archive.addfile(info)


def _add(archive: tarfile.TarFile, path: str, content: bytes, mode: int = 0o600) -> None:
    archive.addfile(_info(path, len(content), mode), io.BytesIO(content))


__all__ = ["Arrived", "ArrivedPart", "interpreter_entries", "place_on"]
