"""Manifests: canonical bytes, and what is refused."""

from __future__ import annotations

import hashlib
import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb._sync.env.manifest import (
    EXECUTABLE,
    FILE,
    LINK,
    Entry,
    Manifest,
    ManifestError,
    Part,
    PartName,
    check_link,
    check_path,
    check_tree,
    manifest_of,
    read_manifest,
    read_part,
)

SHA = "0123456789abcdef" * 4
PART = Part(
    "torch",
    "2.13.0+cpu",
    (
        Entry("env/lib/a b.py", FILE, 12, SHA),
        Entry("env/bin/x", EXECUTABLE, 3, SHA),
        Entry("env/lib/é%\t", LINK, 0, "../bin/x"),
    ),
)
PART_TEXT = (
    b"monarch_nb part 1\ttorch\t2.13.0+cpu\n"
    b"env/bin/x\tx\t3\t" + SHA.encode() + b"\n"
    b"env/lib/a b.py\tf\t12\t" + SHA.encode() + b"\n"
    b"env/lib/%C3%A9%25%09\tl\t0\t../bin/x\n"
)  # fmt: skip
MANIFEST = Manifest(
    {"soabi": "cpython-311", "python": "3.11.7"},
    (PartName(SHA, "torch", "2"), PartName(SHA[::-1], "numpy", "1")),
)
MANIFEST_TEXT = (
    b"monarch_nb environment 1\nfact\tpython\t3.11.7\nfact\tsoabi\tcpython-311\n"
    b"part\t" + SHA[::-1].encode() + b"\tnumpy\t1\npart\t" + SHA.encode() + b"\ttorch\t2\n"
)  # fmt: skip


def test_canonical_bytes_are_these() -> None:
    assert PART.text == PART_TEXT
    assert MANIFEST.text == MANIFEST_TEXT
    assert PART.id == hashlib.sha256(PART_TEXT).hexdigest()
    assert MANIFEST.id == hashlib.sha256(MANIFEST_TEXT).hexdigest()


def test_order_of_parts_and_entries_does_not_matter() -> None:
    assert Part("torch", "2.13.0+cpu", PART.entries[::-1]).id == PART.id
    assert Manifest(dict(reversed(MANIFEST.facts.items())), MANIFEST.parts[::-1]).id == MANIFEST.id


NAMES = st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=8).filter(
    lambda n: n not in (".", "..")
)
NAMES |= (
    st.binary(min_size=1, max_size=5)
    .map(os.fsdecode)
    .filter(lambda n: not {"/", "\0"} & set(n) and n not in (".", ".."))
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda names: "/".join(["env", *names]))


@given(st.lists(PATHS, unique=True, max_size=5), st.text(max_size=5))
def test_what_is_written_is_read(paths: list[str], version: str) -> None:
    part = Part("a", version, tuple(sorted(Entry(p, FILE, 1, SHA) for p in paths)))
    try:
        text = part.text
    except UnicodeEncodeError:  # half of a surrogate pair, in no file name
        return
    assert read_part(text) == part
    manifest = manifest_of({"k": version}, [part])
    assert read_manifest(manifest.text) == manifest


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "env",
        "env/",
        "env//a",
        "env/../x",
        "env/./x",
        "../env/x",
        "env/a/..",
        "",
        "/",
        "env/a\0b",
        "En v/x",
        "env/..",
        "1env/a",
        ".env/a",
    ],
)
def test_paths_that_lead_out_are_refused(path: str) -> None:
    with pytest.raises(ManifestError, match="no path below a prefix"):
        check_path(path)


@pytest.mark.parametrize(
    ("path", "target"),
    [("env/a", "/etc"), ("env/a", "../.."), ("env/a", "../../x"), ("env/a", ""), ("env/a", "b/../../x"),
     ("env/a", "."), ("env/a", "b//c"), ("env/a/b", "../../../x"),
     ("env/a", "c\0"), ("env/a", "./b"), ("env/a", "..")],
)  # fmt: skip
def test_links_that_lead_out_are_refused(path: str, target: str) -> None:
    with pytest.raises(ManifestError, match="lead out"):
        check_link(path, target)


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("env/a", "b"),
        ("env/bin/python", "../../base/bin/python3"),
        ("env/lib/x", ".."),
        ("env/l/m/x", "../n/o"),
    ],
)
def test_links_that_stay_are_taken(path: str, target: str) -> None:
    check_link(path, target)


def test_nothing_lies_below_a_link_or_a_file() -> None:
    link, below = Entry("env/a", LINK, 0, "b"), Entry("env/a/c", FILE, 1, SHA)
    with pytest.raises(ManifestError, match=r"'env/a' is a file or a link"):
        check_tree([Part("p", "", (link,)), Part("q", "", (below,))])
    with pytest.raises(ManifestError, match="twice"):
        check_tree([Part("p", "", (link,)), Part("q", "", (link,))])


@pytest.mark.parametrize(
    "change",
    [lambda t: t[:-1], lambda t: t + t, lambda t: t.replace(b"\tf\t", b"\tz\t"),
     lambda t: t.replace(b"\t12\t", b"\t012\t"), lambda t: t.replace(b"\t12\t", b"\t-1\t"),
     lambda t: t.replace(SHA.encode(), SHA[:-1].encode()), lambda t: t.replace(b"env/bin/x", b"/etc/x"),
     lambda t: t.replace(b"%C3%A9", b"%c3%a9"), lambda t: b"",
     lambda t: t.replace(b"../bin/x", b"/bin/x"), lambda t: t.replace(b"env/bin/x\tx", b"env/zin/x\tx"),
     lambda t: t.replace(b"a b", b"%61 b"), lambda t: t.replace(b"\t12\t", "\t١٢\t".encode())],
)  # fmt: skip
def test_a_part_that_is_not_canonical_is_refused(change) -> None:
    with pytest.raises(ManifestError):
        read_part(change(PART_TEXT))


def test_ten_thousand_broken_parts_are_refused_or_harmless() -> None:
    """What is taken has only paths and links that stay in a prefix, however the bytes were changed."""
    draw = random.Random(int(os.environ.get("MONARCH_NB_HOSTILE_SEED", "3")))
    tricks = [
        b"..",
        b"/",
        b"\0",
        b"\t",
        b"\n",
        b"%2F",
        b"%2E%2E",
        b"%00",
        b"../../..",
        b"env/",
        b"l",
        SHA.encode(),
    ]
    for _ in range(10_000):
        text = bytearray(PART_TEXT)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(text))
            text[at : at + draw.randint(0, 4)] = draw.choice(tricks)
        try:
            part = read_part(bytes(text))
        except ManifestError:
            continue
        for entry in part.entries:
            names = entry.path.split("/")
            assert not {"", ".", ".."} & set(names), entry
            assert "\0" not in entry.path
            if entry.kind == LINK:
                assert (
                    os.path.normpath(f"{os.path.dirname(entry.path)}/{entry.content}").split("/")[0] != ".."
                ), entry
                assert not entry.content.startswith("/")
