"""Real environments, made for tests: small, and without a network."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from monarch_nb._sync.env.cache import HashCache
from monarch_nb._sync.env.interpreter import interpreter_of
from monarch_nb._sync.env.layers import find_layers
from monarch_nb._sync.env.scan import Scanned, scan

BASE_PYTHON = os.path.join(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
OF_DISTRIBUTION = os.path.realpath(sys.base_prefix) in ("/usr", "/usr/local")
"""Whether what is made here is made from the distribution's Python, which stays: `python3 -m venv`."""
NO_OWN_INTERPRETER = (
    f"what is made here has no interpreter of its own, but that of {sys.base_prefix}, which is never sent: "
    "run the tests by another Python (uv venv --managed-python)"
)
needs_own_interpreter = pytest.mark.skipif(OF_DISTRIBUTION, reason=NO_OWN_INTERPRETER)
"""For tests of sending an interpreter."""
OLD_S = 1_500_000_000


@dataclass
class Made:
    """An environment: its prefix."""

    prefix: Path

    @property
    def python(self) -> str:
        return str(self.prefix / "bin" / "python")

    @property
    def site(self) -> Path:
        return next((self.prefix / "lib").glob("python3*")) / "site-packages"

    def run(self, program: str, *arguments: str) -> str:
        """Run a program with its interpreter, which finds nothing of ours; return what it prints."""
        return subprocess.run(
            [self.python, "-c", program, *arguments], capture_output=True, text=True, check=True, env=bare()
        ).stdout.strip()

    def wheel(
        self,
        folder: Path,
        name: str,
        version: str,
        *,
        script: bool = False,
        tag: str = "py3-none-any",
        extra: dict[str, str] | None = None,
    ) -> Path:
        """Write a wheel with a module of the package's name."""
        info = f"{name}-{version}.dist-info"
        files = {
            f"{name}/__init__.py": f"VERSION = {version!r}\n\ndef main():\n    import sys\n"
            f"    print({name!r}, sys.prefix)\n",
            f"{name}/data.txt": "some data\n" * 100,
            **(extra or {}),
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
        }
        if script:
            files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{name}-script = {name}:main\n"
        record = "".join(
            f"{path},sha256={_urlsafe(text)},{len(text.encode())}\n" for path, text in files.items()
        )
        path = folder / f"{name}-{version}-{tag}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for each, text in files.items():
                archive.writestr(each, text)
            archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
        return path

    def install(self, *what: str | Path, editable: bool = False, needs: tuple[str, ...] = ()) -> None:
        """Have pip install something that is here already; then everything looks as if that were long ago.

        Args:
            needs: packages of the tests' own environment that a build needs.
        """
        flags = ["--no-index", "--no-deps", "--no-build-isolation", "--quiet", *(["-e"] if editable else [])]
        subprocess.run(
            [sys.executable, "-m", "pip", "--python", self.python, "install", *flags, *map(str, what)],
            check=True, env=_with_tools(needs),
        )  # fmt: skip
        self.settle()

    def settle(self) -> None:
        """Take the time of all files back by the same: a cache doesn't enter what was written just now."""
        shift_s = time.time() - OLD_S
        for folder, _, names in os.walk(self.prefix):
            for name in names:
                path = os.path.join(folder, name)
                info = os.lstat(path)
                if info.st_mtime > OLD_S + 1e8:
                    os.utime(
                        path,
                        ns=(info.st_atime_ns, info.st_mtime_ns - int(shift_s) * 10**9),
                        follow_symlinks=False,
                    )
        _age_byte_code(self.prefix)

    def scan(self, cache_file: str, *, verify: bool = False) -> Scanned:
        return scan(find_layers(interpreter_of(self.python)), HashCache(cache_file), verify=verify)


def make_venv(prefix: Path, *flags: str) -> Made:
    subprocess.run([BASE_PYTHON, "-m", "venv", "--without-pip", *flags, str(prefix)], check=True, env=bare())
    return Made(prefix)


def bare() -> dict[str, str]:
    """Return an environment in which an interpreter finds only its own packages."""
    return {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COVERAGE")) and k != "VIRTUAL_ENV"
    }


def make_project(folder: Path, backend: str) -> None:
    """Write a package `mine` that this backend builds."""
    (folder / "src" / "mine").mkdir(parents=True)
    (folder / "src" / "mine" / "__init__.py").write_text("WHO = 'mine'\n")
    name = "setuptools.build_meta" if backend == "setuptools" else f"{backend}.build"
    project = '[project]\nname = "mine"\nversion = "1"\n'
    (folder / "pyproject.toml").write_text(
        f'[build-system]\nrequires = ["{backend}"]\nbuild-backend = "{name}"\n{project}'
    )


def make_native_project(folder: Path, backend: str) -> None:
    """Write a package `mine` with an extension module `native` that this backend builds."""
    (folder / "src" / "mine").mkdir(parents=True)
    (folder / "src" / "mine" / "__init__.py").write_text("WHO = 'mine'\n")
    (folder / "native.c").write_text(EXTENSION)
    for path, text in NATIVE[backend].items():
        (folder / path).write_text(text)


EXTENSION = """#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "native", 0, -1, methods};
PyMODINIT_FUNC PyInit_native(void) { return PyModule_Create(&module); }
"""
PROJECT = """[build-system]
requires = ["{name}"]
build-backend = "{backend}"
[project]
name = "mine"
version = "1"
"""
NATIVE = {
    "scikit_build_core": {
        "pyproject.toml": PROJECT.format(name="scikit-build-core", backend="scikit_build_core.build"),
        "CMakeLists.txt": """cmake_minimum_required(VERSION 3.15)
project(mine C)
find_package(Python COMPONENTS Interpreter Development.Module REQUIRED)
Python_add_library(native MODULE native.c WITH_SOABI)
install(TARGETS native DESTINATION mine)
""",
    },
    "mesonpy": {
        "pyproject.toml": PROJECT.format(name="meson-python", backend="mesonpy"),
        "meson.build": """project('mine', 'c')
py = import('python').find_installation(pure: false)
py.install_sources('src/mine/__init__.py', subdir: 'mine')
py.extension_module('native', 'native.c', install: true, subdir: 'mine')
""",
    },
}


def _with_tools(needs: tuple[str, ...]) -> dict[str, str]:
    """Return an environment in which a build finds packages, and programs, of the tests' own."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    return {**bare(), "PYTHONPATH": os.pathsep.join(_site_of(n) for n in needs), "PATH": path}


def _site_of(package: str) -> str:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parents[1])


def write_old(path: Path, text: str) -> None:
    """Write a file anew, by rename, and have it look old."""
    fresh = path.with_name(path.name + ".fresh")
    fresh.write_text(text)
    os.utime(fresh, (OLD_S - 1000, OLD_S - 1000))
    fresh.rename(path)


def needs(*programs: str) -> str:
    """Return which of these isn't there; empty if all are."""
    return ", ".join(p for p in programs if not shutil.which(p))


def _age_byte_code(prefix: Path) -> None:
    """Have byte code be valid for the sources' new times."""
    for path in prefix.rglob("*.pyc"):
        source = path.parent.parent / f"{path.name.split('.')[0]}.py"
        if source.exists():
            info, content = path.stat(), path.read_bytes()
            path.write_bytes(content[:8] + int(source.stat().st_mtime).to_bytes(4, "little") + content[12:])
            os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def _urlsafe(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
