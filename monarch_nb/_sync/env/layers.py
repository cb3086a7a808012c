"""The directory trees that an interpreter consists of. Each entry of `sys.path` is in one, or is reported as
not covered: nothing is left out silently.

========  ====================================================================================
env       the environment: a conda prefix (with its Python), or a venv (whose Python is in `base`)
base      the interpreter that a venv was made from, or the interpreter itself where there's no
          environment; not if it's a distribution's, which belongs to its machine
user      the user's site-packages
path1 ..  directories that `.pth` files, `PYTHONPATH` or the program itself have put on `sys.path`
src1 ..   source roots of editable installs
========  ====================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from monarch_nb._sync.env.editable import Hooks, editable_hooks
from monarch_nb._sync.env.errors import EnvironmentSyncError
from monarch_nb._sync.env.interpreter import Interpreter
from monarch_nb._sync.env.records import editable_root
from monarch_nb._sync.env.system_python import SYSTEM

ENV, BASE, USER = "env", "base", "user"
CONDA, VENV, PYTHON, CODE = "conda", "venv", "python", "code"
_SYSTEM = ("/usr", "/usr/local", "/")
_SITE = frozenset(("site-packages", "dist-packages"))


@dataclass(frozen=True)
class Layer:
    """A directory tree that is sent to hosts as one unit.

    Attributes:
        name: its directory in a prefix.
        kind: conda, venv, python (an interpreter) or code.
        root: its absolute path here.
        sites: directories in it that packages are installed in, below `root`.
        without: directories below `root` that are excluded: other layers.
    """

    name: str
    kind: str
    root: str
    sites: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layers:
    """The layers that an interpreter is made of.

    Attributes:
        path: `sys.path` as (layer, path in it), and (SYSTEM, ".") for the distribution's standard library;
            what belongs to the working directory, to no layer, or isn't there is left out.
        uncovered: (path, reason) of entries that aren't sent.
        system_python: the distribution's interpreter that the environment was made from, if it was; it
            doesn't go.
        loaders: files of meson-python's loaders, which hosts get replacements for.
    """

    layers: tuple[Layer, ...]
    path: tuple[tuple[str, str], ...]
    uncovered: tuple[tuple[str, str], ...] = ()
    system_python: str = ""
    loaders: frozenset[str] = frozenset()
    interpreter: Interpreter | None = field(default=None, repr=False)

    @property
    def roots(self) -> Mapping[str, str]:
        """Absolute path of each layer, by its name."""
        return {layer.name: layer.root for layer in self.layers}


def find_layers(interpreter: Interpreter) -> Layers:
    """Return the layers of an interpreter.

    Raises:
        EnvironmentSyncError: if it's a distribution's own, without an environment: that can't go to another
            machine.
    """
    found = _interpreter_layers(interpreter)
    sites = _sites(interpreter, found)
    if interpreter.user_site and os.path.isdir(interpreter.user_site):
        found.append(Layer(USER, CODE, os.path.realpath(interpreter.user_site), ("",)))
        sites.append(interpreter.user_site)
    hooks = [editable_hooks(site) for site in sites]
    found += _numbered("src", _outside(_editable_folders(sites, hooks), found))
    rest, refused = _on_path(interpreter, found)
    found += _numbered("path", rest)
    uncovered = [
        *refused,
        *(
            (path, "it hasn't been built, or its build folder is gone: install it again, or without -e")
            for h in hooks
            for path in h.unbuilt
        ),
    ]
    layers = tuple(_completed(layer, found, sites) for layer in found)
    system = (
        interpreter.base_prefix
        if BASE not in {layer.name for layer in layers} and layers[0].kind == VENV
        else ""
    )
    loaders = frozenset(path for h in hooks for path in h.loaders)
    return Layers(
        layers, tuple(_located(interpreter, layers)), tuple(uncovered), system, loaders, interpreter
    )


def _interpreter_layers(interpreter: Interpreter) -> list[Layer]:
    prefix, base = os.path.realpath(interpreter.prefix), os.path.realpath(interpreter.base_prefix)
    if os.path.isdir(os.path.join(prefix, "conda-meta")):
        return [Layer(ENV, CONDA, prefix)]
    is_system = _is_system(interpreter)
    if prefix == base:
        if is_system:
            raise EnvironmentSyncError(
                f"{interpreter.executable} is the distribution's own Python, which belongs to its machine: "
                "make an environment for the notebook (python3 -m venv, uv venv, conda create) and sync that"
            )
        return [Layer(BASE, PYTHON, base)]
    env = Layer(ENV, VENV, prefix)
    return (
        [env]
        if is_system
        else [env, Layer(BASE, CONDA if os.path.isdir(os.path.join(base, "conda-meta")) else PYTHON, base)]
    )


def _is_system(interpreter: Interpreter) -> bool:
    """Say whether a distribution's Python is what all is made from. That others may not install packages into
    it (PEP 668) says nothing: uv marks those that it has downloaded, too, and they run on any machine.
    """
    return os.path.realpath(interpreter.base_prefix) in _SYSTEM


def _is_systems_library(path: str, interpreter: Interpreter) -> bool:
    """Say whether a directory has modules that each Python of the distribution has."""
    library = os.path.realpath(interpreter.stdlib)
    return _is_system(interpreter) and path in (library, os.path.join(library, "lib-dynload"))


def _sites(interpreter: Interpreter, layers: Sequence[Layer]) -> list[str]:
    """Return the site directories on the path that are in layers."""
    found = [
        os.path.realpath(p) for p in interpreter.path if os.path.basename(p) in _SITE and os.path.isdir(p)
    ]
    return [p for p in dict.fromkeys(found) if any(is_below(p, layer.root) for layer in layers)]


def _editable_folders(sites: Iterable[str], hooks: Iterable[Hooks]) -> Iterator[str]:
    """Yield directories that editable installs are imported from: what their hooks name, and only that."""
    roots = {root for site in sites for root in _editable_roots(site)}
    for hook in hooks:
        for folder in hook.folders:
            real = os.path.realpath(folder)
            if folder in hook.built or any(is_below(real, root) for root in roots):
                yield real


def _editable_roots(site: str) -> Iterator[str]:
    for name in os.listdir(site):
        path = os.path.join(site, name, "direct_url.json")
        if name.endswith(".dist-info") and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                if root := editable_root(file.read()):
                    yield root


def _on_path(interpreter: Interpreter, layers: Sequence[Layer]) -> tuple[list[str], list[tuple[str, str]]]:
    """Return directories on the path that are in no layer yet; and what can't be one, with the reason."""
    folders, refused = [], []
    cwd = os.path.realpath(interpreter.cwd)
    for entry in interpreter.path:
        real = os.path.realpath(entry or cwd)
        if not os.path.exists(real) or real == cwd or any(is_below(real, layer.root) for layer in layers):
            continue
        if _is_systems_library(real, interpreter):
            continue
        if reason := _refusal(real, interpreter):
            refused.append((entry, reason))
        else:
            folders.append(real)
    return _outermost(folders), refused


def _refusal(path: str, interpreter: Interpreter) -> str:
    if not os.path.isdir(path):
        return "on sys.path, and no directory"
    base = os.path.realpath(interpreter.base_prefix)
    if _is_system(interpreter) and is_below(path, base):
        return "of the distribution: install it on the host, or into the environment"
    return "too much to send" if path in ("/", "/home", "/root", "/tmp", os.path.expanduser("~")) else ""


def _outside(folders: Iterable[str], layers: Sequence[Layer]) -> list[str]:
    return _outermost([f for f in folders if not any(is_below(f, layer.root) for layer in layers)])


def _outermost(folders: Iterable[str]) -> list[str]:
    unique = sorted(dict.fromkeys(folders))
    return [f for f in unique if not any(f != other and is_below(f, other) for other in unique)]


def _numbered(name: str, folders: Iterable[str]) -> list[Layer]:
    return [Layer(f"{name}{i}", CODE, folder, ("",)) for i, folder in enumerate(folders, 1)]


def _completed(layer: Layer, layers: Sequence[Layer], sites: Iterable[str]) -> Layer:
    """Return a layer with its site directories, and without those of others that lie in it."""
    mine = tuple(
        os.path.relpath(s, layer.root) for s in sites if _owner(s, layers) is layer and s != layer.root
    )
    others = tuple(
        os.path.relpath(o.root, layer.root) for o in layers if o is not layer and is_below(o.root, layer.root)
    )
    if layer.kind == PYTHON and not mine:  # a venv that doesn't see its base's packages
        others += tuple(_site_folders(layer.root))
    return Layer(layer.name, layer.kind, layer.root, mine or layer.sites, others)


def _site_folders(root: str) -> Iterator[str]:
    lib = os.path.join(root, "lib")
    for name in os.listdir(lib) if os.path.isdir(lib) else ():
        if name.startswith("python") and os.path.isdir(os.path.join(lib, name, "site-packages")):
            yield f"lib/{name}/site-packages"


def _located(interpreter: Interpreter, layers: Sequence[Layer]) -> Iterator[tuple[str, str]]:
    for entry in interpreter.path:
        real = os.path.realpath(entry) if entry else ""
        owner = _owner(real, layers) if real else None
        if owner is not None:
            yield owner.name, os.path.relpath(real, owner.root)
        elif real == os.path.realpath(interpreter.stdlib) and _is_system(interpreter):
            yield SYSTEM, "."


def _owner(path: str, layers: Sequence[Layer]) -> Layer | None:
    """Return the innermost layer that a path is in."""
    return max(
        (layer for layer in layers if is_below(path, layer.root)),
        key=lambda layer: len(layer.root),
        default=None,
    )


def is_below(path: str, root: str) -> bool:
    """Say whether a path is a directory or in it.

    >>> is_below("/a/b", "/a"), is_below("/ab", "/a"), is_below("/a", "/a")
    (True, False, True)
    """
    return path == root or path.startswith(root.rstrip("/") + "/")
