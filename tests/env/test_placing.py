"""Prefixes on a host: they run where the original is hidden, are what their manifest says, and survive
whatever happens while they're made.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path
from typing import Any

import pytest
from environments import BASE_PYTHON, OF_DISTRIBUTION, Made, bare
from small_disk import small_disk

from monarch_nb._sync.env import manifest, system_python
from monarch_nb._sync.env.bytecode import PINNED_S
from monarch_nb._sync.env.clean import clean
from monarch_nb._sync.env.errors import EnvironmentSyncError
from monarch_nb._sync.env.fits import Machine, refusal, this_machine, try_prefix, warnings
from monarch_nb._sync.env.local import export, fill_store
from monarch_nb._sync.env.manifest import FILE, Entry
from monarch_nb._sync.env.place import Prefix, find_prefix, hold, link_entry, missing_content, place
from monarch_nb._sync.env.scan import Scanned
from monarch_nb._sync.env.store import Store, StoreFull, WrongContent
from monarch_nb._sync.env.system_python import find_system_python

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def scanned(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Scanned:
    return made.scan(str(tmp_path_factory.mktemp("cache") / "content.sqlite"))


@pytest.fixture(scope="module")
def store_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("host") / "store")


@pytest.fixture(scope="module")
def prefix(scanned: Scanned, store_root: str) -> Prefix:
    return export(store_root, scanned, ["ssl", "ctypes", "alpha"])


def hidden(*folders: str) -> list[str]:
    """Return a command that runs another one where folders are empty."""
    mounts = "; ".join(f"mount -t tmpfs none {folder}" for folder in folders)
    return ["unshare", "-m", "sh", "-c", f'{mounts}; exec "$@"', "sh"]


CAN_HIDE = (
    subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0
    if sys.platform == "linux"
    else False
)
needs_namespaces = pytest.mark.skipif(not CAN_HIDE, reason="no mount namespaces here: run as root")


@needs_namespaces
def test_it_runs_where_the_notebooks_environment_and_interpreter_are_hidden(
    made: Made, prefix: Prefix
) -> None:
    hide = hidden(str(made.prefix), *([] if OF_DISTRIBUTION else [sys.base_prefix]))
    program = (
        "import sys, alpha, ssl, json; print(json.dumps([sys.prefix, sys.base_prefix, alpha.VERSION, "
        "alpha.__file__, sys.path]))"
    )
    found = json.loads(subprocess.check_output([*hide, prefix.python, "-c", program], text=True, env=bare()))
    base = sys.base_prefix if OF_DISTRIBUTION else f"{prefix.root}/base"
    assert found[:3] == [f"{prefix.root}/env", base, "1.0"]
    assert found[3].startswith(prefix.root)
    assert all(p.startswith((prefix.root, base)) for p in filter(None, found[4]))
    assert (
        subprocess.check_output([*hide, f"{prefix.root}/env/bin/beta-script"], text=True, env=bare())
        == f"beta {prefix.root}/env\n"
    )


def test_the_path_of_the_notebook_is_translated(prefix: Prefix, made: Made) -> None:
    asked = made.run("import sys, json; print(json.dumps(sys.path))")
    assert [p for p in prefix.path if p.endswith("site-packages")] == [
        str(made.site).replace(str(made.prefix), f"{prefix.root}/env")
    ]
    assert len(prefix.path) == len([p for p in json.loads(asked) if p])
    program = "import sys; sys.path[:] = sys.argv[1:]; import ssl, ctypes, zipfile, alpha"
    subprocess.run([prefix.python, "-I", "-S", "-c", program, *prefix.path], check=True, env=bare())


def test_byte_code_is_valid_there(prefix: Prefix) -> None:
    message = subprocess.run(
        [prefix.python, "-v", "-B", "-c", "import alpha, ssl"], capture_output=True, text=True, env=bare()
    ).stderr
    for name in ("alpha", "ssl"):
        assert f"/{name}" in message
        assert f"code object from '{prefix.root}" not in "".join(
            line for line in message.splitlines() if "# code object from" in line and f"{name}.py" in line
        )
    assert f"{prefix.root}/env/lib" in "".join(
        line for line in message.splitlines() if "matches" in line and "alpha" in line
    )


def _target(file: str) -> str:
    return os.readlink(file) if os.path.islink(file) else ""


def test_every_file_is_what_the_manifest_says(prefix: Prefix, scanned: Scanned) -> None:
    found = {
        os.path.relpath(os.path.join(d, f), prefix.root)
        for d, _, files in os.walk(prefix.root)
        for f in files
    }
    found |= {
        os.path.relpath(os.path.join(d, f), prefix.root)
        for d, names, _ in os.walk(prefix.root)
        for f in names
        if os.path.islink(os.path.join(d, f))
    }
    wanted = {entry.path: entry for part in scanned.parts.values() for entry in part.entries}
    of_the_host = {
        p for p in found if p.startswith("env/bin/python") and os.path.isabs(_target(f"{prefix.root}/{p}"))
    }
    assert bool(of_the_host) == OF_DISTRIBUTION
    written_there = of_the_host | {p for p in found if p.endswith(".pyc") and p not in wanted}
    assert found - written_there == wanted.keys()
    for path, entry in wanted.items():
        file = f"{prefix.root}/{path}"
        if entry.kind == manifest.LINK:
            assert os.readlink(file) == entry.content
            continue
        info = os.stat(file)
        assert info.st_mtime == PINNED_S
        assert info.st_mode & 0o777 == (
            0o555 if entry.kind in (manifest.EXECUTABLE, manifest.SCRIPT) else 0o444
        )
        if entry.kind not in manifest.MADE_THERE:
            with open(file, "rb") as opened:
                assert hashlib.sha256(opened.read()).hexdigest() == entry.content, path


def test_nothing_else_is_written(prefix: Prefix, store_root: str) -> None:
    assert sorted(os.listdir(os.path.dirname(store_root))) == ["store"]
    assert os.listdir(f"{store_root}/tmp") == []
    assert os.stat(store_root).st_mode & 0o777 == 0o700


def test_a_second_time_nothing_is_done(prefix: Prefix, scanned: Scanned, store_root: str) -> None:
    store = Store(store_root)
    assert fill_store(store, scanned) == 0
    inode = os.stat(prefix.root).st_ino
    assert place(store, scanned.manifest, lambda _: "not asked") == prefix
    assert os.stat(prefix.root).st_ino == inode
    store.close()


def test_versions_of_an_environment_share_what_is_equal(
    made: Made, prefix: Prefix, store_root: str, cache_file: str
) -> None:
    more = made.site / "fresh.py"
    more.write_text("X = 1\n")
    try:
        other = export(store_root, made.scan(cache_file))
    finally:
        more.unlink()
    assert other.root != prefix.root
    assert os.path.samefile(
        f"{other.root}/env/lib/{made.site.parent.name}/site-packages/alpha/data.txt",
        f"{prefix.root}/env/lib/{made.site.parent.name}/site-packages/alpha/data.txt",
    )
    assert not os.path.exists(f"{prefix.root}/env/lib/{made.site.parent.name}/site-packages/fresh.py")


def test_content_that_was_written_in_place_is_found_and_replaced(scanned: Scanned, tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    first = export(root, scanned)
    entry = next(
        e
        for p in scanned.parts.values()
        if p.name == "alpha"
        for e in p.entries
        if e.path.endswith("data.txt")
    )
    os.chmod(f"{first.root}/{entry.path}", 0o644)
    with open(f"{first.root}/{entry.path}", "r+") as file:
        file.write("SOME")
    os.unlink(first.root + ".manifest")  # so that it's made anew
    store = Store(root)
    assert list(missing_content(store, list(scanned.parts.values()))) == [entry.content]
    with pytest.raises(WrongContent, match=r"data\.txt"):
        place(store, scanned.manifest, lambda _: "")
    store.close()
    second = export(root, scanned)
    with open(f"{second.root}/{entry.path}") as file:
        assert file.read().startswith("some")


@pytest.mark.parametrize("content", [b"", b"other", b"right "])
def test_wrong_content_is_not_taken(tmp_path: Path, content: bytes) -> None:
    store = Store(str(tmp_path / "s"))
    name = hashlib.sha256(b"right").hexdigest()
    with pytest.raises(WrongContent):
        store.add(name, [content])
    assert not store.has(name, 5)
    store.add(name, [b"ri", memoryview(b"ght")], is_executable=True)
    assert store.has(name, 5, is_executable=True)
    assert not store.has(name, 5)
    assert os.listdir(store._tmp) == []
    store.close()


def test_a_prefix_that_does_not_work_is_not_there(scanned: Scanned, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentSyncError, match=r"doesn't work there: no_such_thing: ModuleNotFoundError"):
        export(str(tmp_path / "s"), scanned, ["no_such_thing"])
    assert [n for n in os.listdir(tmp_path / "s" / "envs") if not n.endswith(".lock")] == []
    assert find_prefix(str(tmp_path / "s"), scanned.manifest.id) is None


def test_a_file_is_no_place_for_a_store(scanned: Scanned, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for advice, named in (
        ("", "MONARCH_NB_STORE=DIRECTORY"),
        ("--export DIRECTORY names another", "--export"),
    ):
        with pytest.raises(EnvironmentSyncError, match=f"no store can be at {file} .* directory: {named}"):
            export(str(file), scanned, advice=advice)


KILLED = """
    import os, signal, sys
    sys.path[:0] = {path!r}
    from environments import Made
    from pathlib import Path
    from monarch_nb._sync.env.local import export
    scanned = Made(Path({prefix!r})).scan({cache!r})
    left = {after}
    for name in ("rename", "link", "symlink", "mkdir", "utime", "chmod"):
        def counted(*args, _call=getattr(os, name), **kwargs):
            global left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return _call(*args, **kwargs)
        setattr(os, name, counted)
    print(export({root!r}, scanned, ["alpha"]).root)
"""


def program(made: Made, root: str, cache_file: str, after: int) -> list[str]:
    path = [str(ROOT), str(Path(__file__).parent)]
    text = textwrap.dedent(KILLED).format(
        path=path, prefix=str(made.prefix), cache=cache_file, root=root, after=after
    )
    return [sys.executable, "-c", text]


def test_killed_at_any_step_it_is_taken_up_again(made: Made, scanned: Scanned, tmp_path: Path) -> None:
    """One store, killed again and again: each time later, since what was done is kept."""
    root, cache_file = str(tmp_path / "store"), str(tmp_path / "cache.sqlite")
    num_objects = []
    for after in (3, 25, 60, 900, 2000, 4500, 9000):
        ended = subprocess.run(program(made, root, cache_file, after), capture_output=True, text=True)
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        assert find_prefix(root, scanned.manifest.id) is None
        num_objects.append(sum(len(files) for _, _, files in os.walk(f"{root}/objects")))
    assert num_objects == sorted(num_objects)
    assert len(num_objects) > 2
    prefix = export(root, scanned, ["alpha"])
    assert not list(os.listdir(f"{root}/tmp"))
    assert (
        subprocess.check_output(
            [prefix.python, "-c", "import alpha; print(alpha.VERSION)"], text=True, env=bare()
        )
        == "1.0\n"
    )
    for folder in os.scandir(f"{root}/objects"):
        for entry in os.scandir(folder.path):
            with open(entry.path, "rb") as file:
                assert hashlib.sha256(file.read()).hexdigest() == (folder.name + entry.name).rstrip("x"), (
                    "an object whose name lies"
                )


def test_two_at_once_make_one_prefix(made: Made, tmp_path: Path) -> None:
    commands = [program(made, str(tmp_path / "store"), str(tmp_path / f"cache{i}"), 0) for i in range(2)]
    running = [subprocess.Popen(c, stdout=subprocess.PIPE, text=True) for c in commands]
    message = {p.communicate(timeout=120)[0] for p in running}
    assert len(message) == 1
    assert [p.returncode for p in running] == [0, 0]


ADDING = """
from monarch_nb._sync.env.store import Store
store = Store({root!r})
print("ready", flush=True)
while True:
    store.add({content!r}, [b"same"])
"""


def test_content_is_linked_that_another_process_puts_in_its_place(tmp_path: Path) -> None:
    """A name that was looked up leads to a file without a name by the time it is linked: without a second
    try, one of twenty links failed.
    """
    content = hashlib.sha256(b"same").hexdigest()
    store = Store(str(tmp_path / "store"))
    store.add(content, [b"same"])
    text = ADDING.format(root=store.root, content=content)
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, cwd=ROOT) as adding:
        try:
            assert adding.stdout is not None and adding.stdout.readline() == b"ready\n"
            for n in range(2000):
                link_entry(store, str(tmp_path / str(n)), Entry("same", FILE, 4, content))
            with pytest.raises(FileNotFoundError):
                link_entry(store, str(tmp_path / "nowhere" / "same"), Entry("same", FILE, 4, content))
        finally:
            adding.kill()
    store.close()


def test_a_full_disk_is_said_and_later_gone_on_from(scanned: Scanned, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "48k" if OF_DISTRIBUTION else "12m") as disk:
        root = str(disk.path / "store")
        with pytest.raises(StoreFull, match=r"no room left at .*store: monarch-nb sync --gc"):
            export(root, scanned)
        assert find_prefix(root, scanned.manifest.id) is None
        subprocess.run(["mount", "-o", "remount,size=400m", str(disk.path)], check=True)
        store = Store(root)
        assert sum(missing_content(store, list(scanned.parts.values())).values()) < scanned.num_bytes
        store.close()
        assert export(root, scanned, ["alpha"]).id == scanned.manifest.id


def test_what_runs_is_not_removed(scanned: Scanned, tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    prefix = export(root, scanned)
    fd = hold(root, scanned.manifest.id)
    assert clean(root, max_age_s=0, fresh_s=0).in_use == (os.path.basename(prefix.root),)
    child = subprocess.Popen(["sleep", "60"], pass_fds=[fd])  # a rank that was forked keeps it, too
    os.close(fd)
    try:
        assert clean(root, max_age_s=0, fresh_s=0).in_use
    finally:
        child.kill()
        child.wait()
    done = clean(root, max_age_s=0, fresh_s=0)
    assert done.prefixes == (os.path.basename(prefix.root),)
    entries = [e for p in scanned.parts.values() for e in p.entries]
    sizes = {e.content: e.size for e in entries if e.kind in (manifest.FILE, manifest.EXECUTABLE)}
    assert done.num_bytes >= sum(sizes.values())
    assert sum(len(files) for _, _, files in os.walk(f"{root}/objects")) == 0
    with pytest.raises(OSError):
        hold(root, scanned.manifest.id)
    assert export(root, scanned).root == prefix.root


def test_the_longest_unused_goes_first_and_what_is_fresh_stays(
    made: Made, scanned: Scanned, tmp_path: Path, cache_file: str
) -> None:
    root = str(tmp_path / "store")
    old = export(root, scanned)
    os.utime(old.root + ".lock", (1, 1))
    (made.site / "fresh.py").write_text("X = 2\n")
    try:
        new = export(root, made.scan(cache_file))
    finally:
        (made.site / "fresh.py").unlink()
    done = clean(root, max_bytes=scanned.num_bytes * 2)
    assert done.prefixes == (os.path.basename(old.root),)
    assert done.num_objects == 0, "it came within a day"
    assert try_prefix(new, ["alpha"]) == ""


def test_a_store_that_is_written_to_is_not_cleaned(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "s"))
    with pytest.raises(EnvironmentSyncError, match="being written to"):
        clean(store.root)
    store.close()
    assert clean(store.root).prefixes == ()
    with pytest.raises(EnvironmentSyncError, match="no store at"):
        clean(str(tmp_path / "nowhere"))


def test_no_store_can_be_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentSyncError, match="MONARCH_NB_STORE=DIRECTORY"):
        Store(str(tmp_path / "file" / "store"))


FACTS = {
    "machine": "x86_64",
    "libc": "glibc 2.36",
    "glibc": "2.28",
    "soabi": "cpython-311-x86_64-linux-gnu",
    "system_python": "",
    "cuda": "12.8",
}
FITTING = Machine("x86_64", "glibc 2.31", (), "570.1", 1 << 40, 1 << 30)


@pytest.mark.parametrize(
    ("facts", "there", "message"),
    [
        ({}, {}, ""),
        ({}, {"machine": "aarch64"}, "it is for x86_64, the host is aarch64"),
        ({}, {"libc": "glibc 2.17"}, "it needs glibc 2.28, this host has 2.17"),
        ({}, {"libc": "musl 1.2"}, "this host has musl 1.2"),
        ({"system_python": "/usr"}, {}, "this host has none: install it there"),
        ({"system_python": "/usr"}, {"soabis": ("cpython-312-x86_64-linux-gnu",)},
         "this host has cpython-312-x86_64-linux-gnu"),
        ({"system_python": "/usr"}, {"soabis": ("cpython-39-x86_64-linux-gnu", FACTS["soabi"])}, ""),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(facts: dict[str, str], there: dict[str, Any], message: str) -> None:
    found = refusal({**FACTS, **facts}, Machine(**{**FITTING.__dict__, **there}))
    assert found == "" if not message else message in found


def test_of_several_pythons_of_a_distribution_that_of_the_environment_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minor, soabi = os.path.basename(BASE_PYTHON), str(sysconfig.get_config_var("SOABI"))
    (tmp_path / minor).symlink_to(BASE_PYTHON)
    for name, text in (
        ("python3", """echo '["cpython-39-x86_64-linux-gnu", ["/usr/lib/python3.9"]]'"""),
        ("python3.2", "exit 1"),
        ("python3-config", "echo '[0, []]'"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(system_python, "_FOLDERS", (str(tmp_path), str(tmp_path / "absent")))
    assert this_machine(str(tmp_path)).soabis == (soabi, "cpython-39-x86_64-linux-gnu")
    found = find_system_python(soabi, "/usr")
    assert found is not None and found.executable == str(tmp_path / minor)
    assert sysconfig.get_path("stdlib") in found.library
    assert not [path for path in found.library if path.endswith("-packages")]
    assert find_system_python("cpython-310-x86_64-linux-gnu", "/usr") is None


def test_a_driver_that_is_too_old_is_said() -> None:
    assert list(warnings(FACTS, FITTING)) == []
    assert list(warnings(FACTS, Machine(**{**FITTING.__dict__, "driver": "470.82"}))) == [
        "NVIDIA's driver 470.82 is too old for CUDA 12.8, which needs 525"
    ]


def test_this_machine_fits_what_runs_on_it(scanned: Scanned, tmp_path: Path) -> None:
    assert refusal(scanned.manifest.facts, this_machine(str(tmp_path))) == ""
    needed = scanned.manifest.facts["glibc"]
    assert needed == "" if OF_DISTRIBUTION else needed.startswith("2.")


@needs_namespaces
def test_a_conda_prefix_with_text_and_binary_placeholders_runs_elsewhere(
    conda: Made, tmp_path: Path, cache_file: str
) -> None:
    scanned = conda.scan(cache_file)
    kinds = {entry.path: entry.kind for part in scanned.parts.values() for entry in part.entries}
    assert kinds["env/etc/prefixdemo.conf"] == manifest.TEMPLATE
    assert kinds["env/lib/libprefixdemo.so"] in manifest.MADE_THERE
    prefix = export(str(tmp_path / "host" / "store"), scanned, ["meshpure"])
    hide = hidden(str(conda.prefix), sys.base_prefix)
    message = subprocess.check_output([*hide, f"{prefix.root}/env/bin/prefixdemo"], text=True, env=bare())
    assert (
        f"binary says {prefix.root}/env/etc/prefixdemo.conf "
        f"len={len(prefix.root + '/env/etc/prefixdemo.conf')}"
    ) in message
    assert f"conf says controller={prefix.root}/env" in message
    assert (
        subprocess.check_output([*hide, f"{prefix.root}/env/bin/prefixscript"], text=True, env=bare())
        == f"script of {prefix.root}/env\n"
    )
    assert "env/bin/python" in kinds
