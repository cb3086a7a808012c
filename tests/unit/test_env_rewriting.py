"""Files with a prefix's path in them, byte code, and where ELF files look for libraries."""

from __future__ import annotations

import contextlib
import os
import py_compile
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from monarch_nb._sync.env import bytecode, elf
from monarch_nb._sync.env.templates import TemplateError, cut_binary, cut_text, fill

ROOTS = {"env": "/home/me/proj/.venv", "base": "/home/me/.pyenv/3.11", "src1": "/home/me/proj"}
THERE = {"env": "/store/envs/1/env", "base": "/store/envs/1/base", "src1": "/store/envs/1/src1"}
PREFIXES = (
    st.text("abcXYZ09_-./é", min_size=1, max_size=300)
    .map(lambda s: "/" + s.strip("/"))
    .filter(lambda s: len(s) > 1)
)


def test_longest_root_goes_first_and_names_that_only_begin_alike_stay() -> None:
    text = b"/home/me/proj/.venv/bin /home/me/proj/x.py /home/me/proj2/y /home/me/project /home/me/proj"
    template = cut_text(text, ROOTS)
    assert fill(template, ROOTS) == text
    assert (
        fill(template, THERE)
        == b"/store/envs/1/env/bin /store/envs/1/src1/x.py /home/me/proj2/y /home/me/project "
        b"/store/envs/1/src1"
    )


def test_a_text_without_a_prefix_has_no_template() -> None:
    assert cut_text(b"home = /usr/bin", ROOTS) is None


@given(st.lists(st.binary(max_size=20) | st.sampled_from([r.encode() for r in ROOTS.values()]), max_size=8))
def test_text_comes_back(pieces: list[bytes]) -> None:
    text = b"".join(pieces)
    template = cut_text(text, ROOTS)
    assert template is None or fill(template, ROOTS) == text


@given(PREFIXES, PREFIXES, st.lists(st.binary(max_size=30), max_size=4))
def test_templates_of_two_prefixes_are_equal(one: str, other: str, pieces: list[bytes]) -> None:
    assume(not any(b"/" in p for p in pieces))
    made = [cut_text(b" ".join([p.encode() + b"/bin", *pieces]), {"env": p}) for p in (one, other)]
    assert made[0] == made[1]
    assert fill(made[0], {"env": other}) == b" ".join([other.encode() + b"/bin", *pieces])


@given(
    st.integers(1, 255),
    st.integers(1, 255),
    st.lists(st.sampled_from([b"/etc/x.conf", b"", b":/opt", b"\x01\x02"]), max_size=4),
    st.integers(1, 5),
)
def test_binary_comes_back_whatever_the_lengths(
    here: int, there: int, tails: list[bytes], num_nuls: int
) -> None:
    placeholder = ("/p" + "laceholder_" * 30)[:255]
    one, other = "/" + "a" * (here - 1) if here > 1 else "/", "/" + "b" * (there - 1)
    assume(here > 1 and there > 1)
    package = (
        b"\x7fHEAD\0" + b"".join(placeholder.encode() + tail + bytes(num_nuls) for tail in tails) + b"last\0"
    )
    installed = fill(
        b'mnb template 1 {"placeholder": "%s", "layer": "env"}\n%s' % (placeholder.encode(), package),
        {"env": one},
    )
    assert len(installed) == len(package)
    template = cut_binary(installed, "env", one, placeholder)
    if not tails:
        assert template is None
        return
    assert template.endswith(package), "cutting the prefix out gives the package's own file"
    moved = fill(template, {"env": other})
    assert len(moved) == len(package)
    assert [s for s in moved.split(b"\0") if s] == [
        s.replace(placeholder.encode(), other.encode()) for s in package.split(b"\0") if s
    ]


def test_a_prefix_longer_than_the_placeholder_is_refused() -> None:
    template = b'mnb template 1 {"placeholder": "/short", "layer": "env"}\n/short/x\0'
    with pytest.raises(
        TemplateError, match=r"room for a prefix of 6 bytes, this one has 17.*MONARCH_NB_STORE"
    ):
        fill(template, THERE)


@pytest.mark.parametrize(
    "template",
    [b"", b"x", b"mnb template 1 {}\nx", b"mnb template 1 []\nx", b'mnb template 1 {"cuts": 3}\nx',
     b'mnb template 1 {"cuts": [[9, "env"]]}\nx',
     b'mnb template 1 {"cuts": [[0, "nowhere"]]}\nx', b'mnb template 1 {"cuts": [[1, "env"], [0, "env"]]}\nx',
     b'mnb template 1 {"cuts": [[0]]}\nx',
     b'mnb template 1 {"placeholder": "", "layer": "env"}\nx', b'mnb template 1 {"cuts": [["a", "env"]]}\nx'],
)  # fmt: skip
def test_what_is_no_template_is_refused(template: bytes) -> None:
    with pytest.raises(TemplateError):
        fill(template, THERE)


def test_a_script_with_a_long_path_still_starts(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 50) / "bin"
    folder.mkdir(parents=True)
    os.symlink(sys.executable, folder / "python3")
    template = cut_text(
        b"#!/home/me/proj/.venv/bin/python3 -I\nimport sys\nprint(sys.flags.isolated, sys.argv[1:])\n", ROOTS
    )
    script = folder / "script"
    script.write_bytes(fill(template, {"env": str(folder.parent)}))
    script.chmod(0o755)
    assert script.read_bytes().startswith(b"#!/bin/sh\n")
    assert subprocess.check_output([script, "a b"], text=True).strip() == "1 ['a b']"


def test_byte_code_is_given_the_pinned_time_and_stays_valid(tmp_path: Path) -> None:
    source = tmp_path / "m.py"
    source.write_text("x = 1\n")
    compiled = Path(py_compile.compile(str(source)))
    content, info = compiled.read_bytes(), source.stat()
    assert bytecode.is_current(content, int(info.st_mtime), info.st_size)
    assert not bytecode.is_current(content, int(info.st_mtime) + 1, info.st_size)
    assert not bytecode.is_current(content, int(info.st_mtime), info.st_size + 1)
    assert not bytecode.is_current(content[:10], int(info.st_mtime), info.st_size)
    fresh = bytecode.normalised(content)
    assert bytecode.is_current(fresh, bytecode.PINNED_S, info.st_size)
    assert fresh[16:] == content[16:]
    by_hash = content[:4] + struct.pack("<I", 3) + content[8:]
    assert bytecode.normalised(by_hash) == by_hash
    assert bytecode.is_current(by_hash, 0, 0)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program in `bin` that finds its library in `lib` by an absolute search path."""
    if not shutil.which("gcc"):
        pytest.skip("no gcc here")
    root = tmp_path_factory.mktemp("elf") / "prefix"
    (root / "bin").mkdir(parents=True)
    (root / "lib").mkdir()
    (root / "a.c").write_text("int answer(void){return 42;}")
    (root / "m.c").write_text("int answer(void); int main(void){return answer();}")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", root / "lib/libanswer.so", root / "a.c"], check=True)
    for kind in ("enable", "disable"):
        subprocess.run(
            [
                "gcc",
                "-o",
                root / "bin" / kind,
                root / "m.c",
                f"-L{root}/lib",
                "-lanswer",
                f"-Wl,-rpath,{root}/lib:/elsewhere",
                f"-Wl,--{kind}-new-dtags",
            ],
            check=True,
        )
    return root


@pytest.mark.parametrize("kind", ["enable", "disable"])  # RUNPATH, RPATH
def test_programs_find_their_libraries_after_a_move(libraries: Path, tmp_path: Path, kind: str) -> None:
    program = libraries / "bin" / kind
    changed = elf.relative(program.read_bytes(), f"base/bin/{kind}", {"base": str(libraries)})
    assert [p.text for p in elf.search_paths(changed)] == [b"$ORIGIN/../lib:/elsewhere"]
    assert len(changed) == program.stat().st_size
    moved = tmp_path / "moved" / "bin" / kind
    moved.parent.mkdir(parents=True)
    shutil.copytree(libraries / "lib", tmp_path / "moved/lib")
    moved.write_bytes(changed)
    moved.chmod(0o755)
    hidden = libraries.rename(libraries.with_name("hidden"))
    try:
        assert subprocess.run([moved]).returncode == 42
    finally:
        hidden.rename(libraries)


def test_what_does_not_fit_is_said(libraries: Path) -> None:
    content = (libraries / "bin/enable").read_bytes()
    with pytest.raises(elf.ElfError, match="doesn't fit"):
        elf.relative(content, "env/" + "a/" * 60 + "x", {"base": str(libraries)})


@given(st.data())
def test_broken_elf_files_raise_one_error(data: st.DataObject) -> None:
    content = bytearray(elf.MAGIC.ljust(64, b"\0") + bytes(200))
    struct.pack_into("<Q", content, 32, data.draw(st.integers(0, 300)))
    struct.pack_into("<HH", content, 54, data.draw(st.integers(0, 100)), data.draw(st.integers(0, 4)))
    content[64:] = data.draw(st.binary(min_size=200, max_size=200))
    with contextlib.suppress(elf.ElfError):
        elf.search_paths(bytes(content))


def test_other_files_have_no_search_paths() -> None:
    assert elf.search_paths(b"#!/bin/sh") == []
    assert elf.relative(b"#!/bin/sh", "env/bin/x", ROOTS) == b"#!/bin/sh"
