"""A real conda prefix: packages made here, without a channel that must be reached, and installed by rattler.

The packages are what conda's format says they are (`info/index.json`, `info/paths.json`, a placeholder of 255
characters where the prefix stands in text and in C strings): this interpreter, a program and a library that
name their prefix, and one for any Python.

py-rattler runs in a process of its own with a time limit: it has been seen to end with a segmentation fault,
and not to end at all, after a complete install; so what it has installed is looked at, not its status.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from environments import Made, needs

RATTLER_S = 90.0
NOTHING = hashlib.sha256().hexdigest()
PLACEHOLDER = "/" + ("_placehold" * 26)[:254]
MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
VERSION = ".".join(map(str, sys.version_info[:3]))
_DROPPED = (
    "site-packages", "test", "tests", "idlelib", "ensurepip", "tkinter", "turtledemo", "lib2to3",
    "pydoc_data", "config-*", "__pycache__",
)  # fmt: skip
LIBRARY = 'const char *prefix_path(void) { static const char s[] = "%s/etc/prefixdemo.conf"; return s; }\n'
PROGRAM = r"""
#include <stdio.h>
#include <string.h>
const char *prefix_path(void);
int main(void) {
    char text[4096] = {0};
    printf("binary says %s len=%zu\n", prefix_path(), strlen(prefix_path()));
    FILE *file = fopen(prefix_path(), "r");
    if (!file) { puts("it can't be opened"); return 1; }
    fread(text, 1, sizeof(text) - 1, file);
    printf("conf says %s", text);
    return 0;
}
"""
INSTALL = """
    import asyncio, sys
    from pathlib import Path
    from rattler import Channel, install, solve
    from rattler.index import index_fs

    async def main(channel, prefix, *specs):
        await index_fs(channel)
        channels = [Channel(Path(channel).as_uri())]
        records = await solve(channels, list(specs), platforms=["linux-64", "noarch"])
        await install(records, prefix, show_progress=False)

    asyncio.run(main(*sys.argv[1:]))
"""


@dataclass
class Package:
    """A conda package that is being made.

    Attributes:
        modes: by path, how the prefix stands in a file: "text" or "binary".
    """

    name: str
    version: str
    build: str
    files: dict[str, bytes] = field(default_factory=dict)
    executable: set[str] = field(default_factory=set)
    links: dict[str, str] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)
    depends: tuple[str, ...] = ()
    is_for_any: bool = False

    def write(self, channel: Path) -> None:
        """Write it into a channel."""
        subdir = "noarch" if self.is_for_any else "linux-64"
        (channel / subdir).mkdir(parents=True, exist_ok=True)
        path = channel / subdir / f"{self.name}-{self.version}-{self.build}.tar.bz2"
        with tarfile.open(path, "w:bz2", compresslevel=1) as archive:
            for name, data in {**self._info(subdir), **self.files}.items():
                _add(archive, name, data, 0o755 if name in self.executable else 0o644)
            for name, target in self.links.items():
                info = tarfile.TarInfo(name)
                info.type, info.linkname = tarfile.SYMTYPE, target
                archive.addfile(info)

    def _info(self, subdir: str) -> dict[str, bytes]:
        index = {
            "name": self.name, "version": self.version, "build": self.build, "build_number": 0,
            "depends": list(self.depends), "subdir": subdir, "license": "MIT",
            "arch": None if self.is_for_any else "x86_64",
            "platform": None if self.is_for_any else "linux",
        }  # fmt: skip
        link: Mapping[str, object] = {"noarch": {"type": "python"}, "package_metadata_version": 1}
        if self.is_for_any:
            index["noarch"] = "python"
        else:
            link = {}
        found: dict[str, object] = {"index.json": index, "paths.json": self._paths(), "about.json": {}}
        found |= {"link.json": link} if link else {}
        return {f"info/{name}": json.dumps(value).encode() for name, value in found.items()}

    def _paths(self) -> dict[str, object]:
        rows: list[dict[str, object]] = []
        for path, data in self.files.items():
            row: dict[str, object] = {
                "_path": path, "path_type": "hardlink", "size_in_bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
            }  # fmt: skip
            if path in self.modes:
                row |= {"prefix_placeholder": PLACEHOLDER, "file_mode": self.modes[path]}
            rows.append(row)
        rows += [
            {"_path": path, "path_type": "softlink", "size_in_bytes": 0, "sha256": NOTHING}
            for path in self.links
        ]
        return {"paths": rows, "paths_version": 1}


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(data), mode, 1_500_000_000
    archive.addfile(info, io.BytesIO(data))


def _python(folder: Path) -> Package:
    """Return this interpreter as a package."""
    found = Package("python", VERSION, "h0_0_cpython")
    base, program = Path(sys.base_prefix), f"bin/python{MINOR}"
    staged = folder / "python" / "lib" / f"python{MINOR}"
    shutil.copytree(
        base / "lib" / f"python{MINOR}", staged, symlinks=True, ignore=shutil.ignore_patterns(*_DROPPED)
    )
    (staged / "site-packages").mkdir()
    (staged / "site-packages" / "README.txt").write_text("conda's site-packages\n")
    for path in (base / "lib").glob(f"libpython{MINOR}.so*"):
        shutil.copy2(path, folder / "python" / "lib", follow_symlinks=False)
    (folder / "python" / "bin").mkdir()
    shutil.copy2(base / program, folder / "python" / program)
    for path in (folder / "python").rglob("*.so*"):
        if not path.is_symlink():
            subprocess.run(["strip", "--strip-unneeded", path], check=True, capture_output=True)
    found.links |= {"bin/python": f"python{MINOR}", "bin/python3": f"python{MINOR}"}
    _take_all(found, folder / "python")
    return found


def _take_all(package: Package, folder: Path) -> None:
    """Take the files of an installed Python: what names its prefix gets the placeholder, a search path for
    libraries becomes relative.
    """
    old, library_path = sys.base_prefix.encode(), f"{sys.base_prefix}/lib\0".encode()
    near = b"$ORIGIN/../lib\0"
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            package.links[name] = os.readlink(path)
        elif path.is_file():
            data = path.read_bytes()
            if data.startswith(b"\x7fELF"):
                data = data.replace(library_path, near.ljust(len(library_path), b"\0"))
            elif old in data and b"\0" not in data:
                data = data.replace(old, PLACEHOLDER.encode())
                package.modes[name] = "text"
            package.files[name] = data
            if os.access(path, os.X_OK):
                package.executable.add(name)


def _prefixdemo(folder: Path) -> Package:
    """Return a package with a library, a program, a file and a script that name their prefix."""
    found = Package("prefixdemo", "1.0", "0", depends=("python",))
    (folder / "demo").mkdir()
    (folder / "demo" / "library.c").write_text(LIBRARY % PLACEHOLDER)
    (folder / "demo" / "program.c").write_text(PROGRAM)
    library, program = folder / "demo" / "libprefixdemo.so", folder / "demo" / "prefixdemo"
    for command in (
        ["gcc", "-shared", "-fPIC", "-Wl,-soname,libprefixdemo.so", "-o", library, "library.c"],
        ["gcc", "-o", program, "program.c", library, "-Wl,-rpath,$ORIGIN/../lib"],
    ):
        subprocess.run(command, check=True, timeout=60, cwd=folder / "demo")
    found.files = {
        "lib/libprefixdemo.so": library.read_bytes(),
        "bin/prefixdemo": program.read_bytes(),
        "etc/prefixdemo.conf": f"controller={PLACEHOLDER}\n".encode(),
        "bin/prefixscript": (
            f"#!{PLACEHOLDER}/bin/python\nimport sys; print('script of', sys.prefix)\n".encode()
        ),
    }
    found.executable = {"lib/libprefixdemo.so", "bin/prefixdemo", "bin/prefixscript"}
    found.modes = {
        "lib/libprefixdemo.so": "binary",
        "etc/prefixdemo.conf": "text",
        "bin/prefixscript": "text",
    }
    return found


def missing_for_conda() -> str:
    """Return what isn't there; empty if a conda prefix can be made."""
    missing = "rattler" * (importlib.util.find_spec("rattler") is None)
    everything = ", ".join(filter(None, [missing, needs("gcc", "strip")]))
    return f"not here: {everything} (pip install py-rattler; apt-get install gcc)" if everything else ""


def make_conda(folder: Path) -> Made:
    """Make packages, and have rattler solve and install them."""
    channel, prefix = folder / "channel", folder / "conda"
    pure = {"site-packages/meshpure/__init__.py": b"X = 1\n"}
    for package in (
        _python(folder),
        _prefixdemo(folder),
        Package("meshpure", "0.1", "py_0", files=pure, depends=("python",), is_for_any=True),
    ):
        package.write(channel)
    env = {**os.environ, "RATTLER_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-c", textwrap.dedent(INSTALL), channel, prefix, "prefixdemo", "meshpure"]
    ended = None
    with suppress(subprocess.TimeoutExpired):
        ended = subprocess.run(command, capture_output=True, text=True, env=env, timeout=RATTLER_S)
    records = {path.name.partition("-")[0] for path in (prefix / "conda-meta").glob("*.json")}
    output = f"nothing within {RATTLER_S:g} s" if ended is None else ended.stderr
    assert records >= {"python", "prefixdemo", "meshpure"}, f"rattler installed {records} and said: {output}"
    return Made(prefix)
