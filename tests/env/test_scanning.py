"""Manifests of real environments: what is read, what is believed, what goes as what."""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest
from environments import (
    BASE_PYTHON,
    OF_DISTRIBUTION,
    OLD_S,
    Made,
    bare,
    make_project,
    make_venv,
    needs,
    needs_own_interpreter,
    write_old,
)

from monarch_nb._sync.env import layers, manifest
from monarch_nb._sync.env.errors import EnvironmentSyncError
from monarch_nb._sync.env.interpreter import Interpreter, interpreter_of, this_interpreter
from monarch_nb._sync.env.layers import find_layers
from monarch_nb._sync.env.manifest import Entry
from monarch_nb._sync.env.scan import Scanned
from monarch_nb._sync.env.system_python import SYSTEM, find_system_python

needs_distribution = pytest.mark.skipif(
    not os.path.exists("/usr/bin/python3"), reason="no Python of the distribution"
)
UV = "" if not needs("uv") else "uv isn't installed here: pip install uv"


def entries(scanned: Scanned) -> dict[str, Entry]:
    return {entry.path: entry for part in scanned.parts.values() for entry in part.entries}


def part(scanned: Scanned, name: str):
    return next(p for p in scanned.parts.values() if p.name == name)


def site(made: Made) -> str:
    return f"env/{made.site.relative_to(made.prefix)}"


def library_of_the_host(interpreter: Interpreter) -> set[str]:
    """Return what of an interpreter's path isn't sent, since hosts have it."""
    if not OF_DISTRIBUTION:
        return set()
    found = find_system_python(interpreter.soabi, interpreter.base_prefix)
    assert found is not None
    return set(found.library)


def test_a_venv_is_two_layers_and_every_path_is_in_one(made: Made) -> None:
    interpreter = interpreter_of(made.python)
    found = find_layers(interpreter)
    base = [] if OF_DISTRIBUTION else [("base", "python")]
    assert [(x.name, x.kind) for x in found.layers] == [("env", "venv"), *base]
    assert not found.uncovered
    covered = {
        os.path.normpath(os.path.join(found.roots[layer], path))
        for layer, path in found.path
        if layer != SYSTEM
    }
    path = {os.path.realpath(p) for p in interpreter.path if p and os.path.isabs(p)}
    assert covered == path - library_of_the_host(interpreter)
    assert ((SYSTEM, ".") in found.path) == OF_DISTRIBUTION


def test_parts_are_distributions_with_their_byte_code(made: Made, cache_file: str) -> None:
    scanned = made.scan(cache_file)
    alpha = part(scanned, "alpha")
    assert alpha.version == "1.0"
    names = {e.path.removeprefix(site(made) + "/") for e in alpha.entries}
    assert {"alpha/__init__.py", "alpha/data.txt", "alpha-1.0.dist-info/RECORD"} <= names
    assert any(n.startswith("alpha/__pycache__/__init__.cpython") for n in names)


def test_what_pip_wrote_down_is_not_read(made: Made, cache_file: str) -> None:
    scanned = made.scan(cache_file)
    data = f"{site(made)}/alpha/data.txt"
    source = scanned.sources[entries(scanned)[data].content]
    os.chmod(source.file, 0)  # root may read it all the same; what was read is counted
    num_first = scanned.num_read
    try:
        again = made.scan(cache_file)
    finally:
        os.chmod(source.file, 0o644)
    assert again.manifest.id == scanned.manifest.id
    assert again.num_read <= num_first
    if not OF_DISTRIBUTION:  # the interpreter's files are old enough for the cache
        assert again.num_read < num_first / 10
    everything = made.scan(cache_file, verify=True)
    assert everything.manifest.id == scanned.manifest.id, "reading everything finds what was believed"
    assert everything.num_read > num_first


def test_an_edit_by_hand_is_found_and_named(made: Made, cache_file: str, tmp_path: Path) -> None:
    file = made.site / "alpha" / "data.txt"
    before, text = made.scan(cache_file), file.read_text()
    file.write_text(text.replace("some", "SOME"))  # as long as it was, and newer than RECORD
    try:
        after = made.scan(cache_file)
        assert after.manifest.id != before.manifest.id
        assert after.edited == {"alpha": (f"{site(made)}/alpha/data.txt",)}
        assert {p.name for p in after.parts.values()} == {p.name for p in before.parts.values()}
        assert [p.name for i, p in after.parts.items() if i not in before.parts] == ["alpha"]
    finally:
        write_old(file, text)
    assert made.scan(cache_file).manifest.id == before.manifest.id


def test_two_environments_of_equal_wheels_are_one(made: Made, cache_file: str, tmp_path: Path) -> None:
    other = make_venv(tmp_path / "elsewhere" / "venv")
    folder = made.prefix.parent
    other.install(*sorted(folder.glob("*.whl")))
    one, two = made.scan(cache_file), other.scan(cache_file)
    a, b = entries(one), entries(two)
    differ = {p for p in a.keys() | b.keys() if a.get(p) != b.get(p)}
    kinds = {os.path.basename(p) for p in differ}
    assert not any(
        p.endswith((".py", ".txt", ".cfg")) or "/bin/" in p
        for p in differ - {p for p in differ if p.endswith("top_level.txt")}
    ), kinds
    assert a["env/bin/beta-script"].kind == manifest.SCRIPT
    assert a["env/pyvenv.cfg"].kind == manifest.TEMPLATE


def test_byte_code_that_is_stale_stays(made: Made, cache_file: str) -> None:
    source = made.site / "beta" / "__init__.py"
    compiled = next((made.site / "beta" / "__pycache__").glob("*.pyc"))
    path = f"{site(made)}/beta/__pycache__/{compiled.name}"
    assert path in entries(made.scan(cache_file))
    info = source.stat()
    os.utime(source, (OLD_S - 5000, OLD_S - 5000))
    try:
        assert path not in entries(made.scan(cache_file))
    finally:
        os.utime(source, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert path in entries(made.scan(cache_file))


@needs_own_interpreter
def test_links_go_from_layer_to_layer(made: Made, cache_file: str) -> None:
    scanned = made.scan(cache_file)
    found = entries(scanned)
    assert found["env/bin/python"].kind == manifest.LINK
    at = "env/bin/python"
    while found[at].kind == manifest.LINK:
        at = os.path.normpath(os.path.join(os.path.dirname(at), found[at].content))
    assert at.startswith("base/bin/python3")
    assert found[at].kind == manifest.EXECUTABLE


def test_a_directory_of_a_pth_is_a_layer_and_a_file_is_named(made: Made, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("X = 1\n")
    (tmp_path / "some.zip").write_bytes(b"PK")
    (made.site / "more.pth").write_text(f"{tmp_path}/code\n{tmp_path}/some.zip\n")
    try:
        found = find_layers(interpreter_of(made.python))
    finally:
        (made.site / "more.pth").unlink()
    assert ("path1", str(tmp_path / "code")) in [(x.name, x.root) for x in found.layers]
    assert ("path1", ".") in found.path
    assert found.uncovered == ((f"{tmp_path}/some.zip", "on sys.path, and no directory"),)


def test_the_distributions_python_does_not_go() -> None:
    found = this_interpreter()
    system = Interpreter(**{**found.__dict__, "prefix": "/usr", "base_prefix": "/usr"})
    with pytest.raises(EnvironmentSyncError, match="python3 -m venv"):
        find_layers(system)


@needs_distribution
def test_a_venv_of_the_distributions_python_goes_without_it(tmp_path: Path, cache_file: str) -> None:
    subprocess.run(
        ["/usr/bin/python3", "-m", "venv", "--without-pip", tmp_path / "v"], check=True, env=bare()
    )
    scanned = Made(tmp_path / "v").scan(cache_file)
    assert scanned.manifest.facts["system_python"] == "/usr"
    assert {path.split("/")[0] for path in entries(scanned)} == {"env"}
    assert scanned.left_out == (), "each host has the standard library"
    assert scanned.manifest.facts["path"].split("\n")[0] == SYSTEM


@needs_distribution
def test_packages_of_the_distribution_are_named(tmp_path: Path) -> None:
    command = ["/usr/bin/python3", "-m", "venv", "--without-pip", "--system-site-packages", tmp_path / "v"]
    subprocess.run(command, check=True, env=bare())
    made = Made(tmp_path / "v")
    interpreter = interpreter_of(made.python)
    packages = [p for p in interpreter.path if p.startswith("/usr/") and p.endswith("-packages")]
    found = find_layers(interpreter)
    assert [path for path, _ in found.uncovered] == packages
    assert all("install it on the host, or into the environment" in why for _, why in found.uncovered)


def test_an_interpreter_that_uv_has_downloaded_goes_though_it_is_externally_managed(tmp_path: Path) -> None:
    base, env = tmp_path / "cpython-3.11-linux", tmp_path / "venv"
    library = base / "lib" / "python3.11"
    for folder in (library, env / "lib" / "python3.11" / "site-packages"):
        folder.mkdir(parents=True)
    (library / "EXTERNALLY-MANAGED").write_text("[externally-managed]\nError=Managed by uv\n")
    there = {"prefix": str(env), "base_prefix": str(base), "stdlib": str(library), "user_site": ""}
    path = (str(library), str(env / "lib" / "python3.11" / "site-packages"))
    found = find_layers(Interpreter(**{**this_interpreter().__dict__, **there, "path": path}))
    assert [(x.name, x.root) for x in found.layers] == [("env", str(env)), ("base", str(base))]
    assert (found.system_python, found.uncovered) == ("", ())


def test_secrets_and_other_environments_stay(made: Made, tmp_path: Path, cache_file: str) -> None:
    code = tmp_path / "code"
    (code / "venv" / "lib").mkdir(parents=True)
    (code / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    for name in (".env", "key.pem", "id_rsa", "module.py", "venv/lib/big.py"):
        (code / name).write_text("x\n")
    (made.prefix / "pip.conf").write_text("[global]\nindex-url = https://me:secret@host/\n")
    (made.site / "more.pth").write_text(f"{code}\n")
    try:
        found = entries(made.scan(cache_file))
    finally:
        (made.site / "more.pth").unlink()
        (made.prefix / "pip.conf").unlink()
    assert {p for p in found if p.startswith("path1/")} == {"path1/module.py"}
    assert "env/pip.conf" not in found


def test_sockets_and_pipes_stay(made: Made, cache_file: str) -> None:
    os.mkfifo(made.prefix / "pipe")
    try:
        assert "env/pipe" not in entries(made.scan(cache_file))
    finally:
        (made.prefix / "pipe").unlink()


def test_a_cache_that_is_broken_is_no_cache(made: Made, cache_file: str) -> None:
    one = made.scan(cache_file)
    Path(cache_file).write_bytes(b"no database" * 1000)
    for extra in Path(cache_file).parent.glob("*-wal"):
        extra.unlink()
    assert made.scan(cache_file).manifest.id == one.manifest.id
    os.unlink(cache_file)
    sqlite3.connect(cache_file).close()
    assert made.scan(cache_file).manifest.id == one.manifest.id


@pytest.mark.parametrize("backend", ["setuptools", "hatchling"])
def test_an_editable_install_is_a_layer(tmp_path: Path, cache_file: str, backend: str) -> None:
    if importlib.util.find_spec(backend) is None:  # setuptools can't be imported behind distutils
        pytest.skip(f"{backend} isn't installed here")
    made = make_venv(tmp_path / "venv")
    project = tmp_path / "project"
    make_project(project, backend)
    made.install(project, editable=True, needs=(backend,))
    assert made.run("import mine; print(mine.WHO)") == "mine"
    found = find_layers(interpreter_of(made.python))
    assert [x.root for x in found.layers if x.name == "src1"] in ([str(project)], [str(project / "src")])
    scanned = made.scan(cache_file)
    assert any(p.endswith("mine/__init__.py") for p in entries(scanned))
    assert any(e.kind == manifest.TEMPLATE and "editable" in e.path for e in entries(scanned).values())


@pytest.mark.skipif(bool(UV), reason=UV)
def test_an_edit_in_uvs_cache_is_found(tmp_path: Path, cache_file: str) -> None:
    """Two environments share inodes; what is edited in place in one is older than the other's RECORD."""
    wheel = Made(tmp_path).wheel(tmp_path, "alpha", "1.0")
    made = []
    for name in ("one", "two"):
        env = {**bare(), "UV_CACHE_DIR": str(tmp_path / "cache"), "UV_LINK_MODE": "hardlink"}
        subprocess.run(["uv", "venv", "-q", "-p", BASE_PYTHON, tmp_path / name], check=True, env=env)
        subprocess.run(
            ["uv", "pip", "install", "-q", "--no-index", "-p", tmp_path / name, wheel], check=True, env=env
        )
        made.append(Made(tmp_path / name))
        data = made[0].site / "alpha" / "data.txt"
        assert data.stat().st_nlink > 1
        with open(data, "r+") as file:  # in place, and after uv's own grace
            file.write("SOME")
        late = data.parent.parent / "alpha-1.0.dist-info" / "WHEEL"
        os.utime(data, ns=(late.stat().st_mtime_ns + 10**12,) * 2)
    found = made[1].scan(cache_file)
    assert found.edited.get("alpha") == (f"{site(made[1])}/alpha/data.txt",)


def test_layers_are_named_in_the_facts(made: Made, cache_file: str) -> None:
    facts = made.scan(cache_file).manifest.facts
    assert facts["layers"] == ("env:venv" if OF_DISTRIBUTION else "env:venv base:python")
    assert facts["python"].startswith("3.")
    assert layers.ENV in facts["path"]
