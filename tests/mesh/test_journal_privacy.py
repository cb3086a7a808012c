"""What is kept on disk, for how long, and what isn't."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from own_meshes import own_mesh
from waiting import wait_until

from monarch_nb._client import launch
from monarch_nb._commands.parser import Namespace
from monarch_nb._journal.audit import FILE as AUDIT
from monarch_nb._journal.retention import keep_s, set_keep_s
from monarch_nb._journal.secrets import mask
from monarch_nb._magics import settings
from monarch_nb._protocol.programs import SettleOutput
from monarch_nb._protocol.shown import CellEnd, Shown
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.mesh import Mesh

T = 60
DAY_S = 86400.0


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with own_mesh("private", {"procs": 1}) as found:
        yield found


class Seen:
    def __init__(self) -> None:
        self.shown = ""
        self.sentences: list[str] = []

    def text(self, rank: int, stream: str, text: str) -> None:
        self.shown += text

    def display(self, rank: int, shown: Shown) -> None: ...
    def ended(self, rank: int, end: CellEnd) -> None: ...
    def ended_well(self, seconds: Mapping[int, float]) -> None: ...

    def message(self, text: str) -> None:
        self.sentences.append(text)


def run(mesh: Mesh, source: str) -> str:
    seen = Seen()
    mesh.submit(source, watcher=seen).wait(T)
    return seen.shown


def kept(mesh: Mesh) -> bytes:
    """Return what the journal has, without who did what, which is written some time later."""
    files = Path(mesh.status().journal).iterdir()
    return b"".join(f.read_bytes() for f in files if f.is_file() and f.name != AUDIT)


def on_disk(mesh: Mesh) -> bytes:
    """Return all that there is of a journal, once what was done so far is written."""
    mesh._session.request(SettleOutput())
    folder = Path(mesh.status().journal)
    deadline = time.monotonic() + T
    last = mesh.history()[-1]
    while f'"n": {last.n},'.encode() not in (
        found := b"".join(f.read_bytes() for f in folder.iterdir() if f.is_file())
    ):
        assert last.details.get("nolog") or time.monotonic() < deadline
    return found


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("AKIAABCDEFGHIJKLMNOP", ""), ("hf_" + "a1B2" * 8, ""), ("ghp_" + "x9" * 18, ""),
        ("github_pat_" + "a_b1" * 8, ""), ("ASIAABCDEFGHIJKLMNOP", ""), ("gho_" + "x9" * 18, ""),
        ("glpat-" + "x9" * 10, ""), ("xoxb-" + "1-a" * 8, ""), ("bearer " + "abcd" * 6, "bearer "),
        ("-----BEGIN RSA PRIVATE KEY-----abc-----END", "-----BEGIN RSA PRIVATE KEY----------END"),
        ("sk-proj-" + "a1" * 12, ""), ("password=hunter2", "password="),
        ("PASSWORD: 'hunter2'", "PASSWORD: ''"),
        ("Authorization: Bearer abc.def.ghi", "Authorization: Bearer "),
        ("os.environ['HF_TOKEN'] = 'abc123'", "os.environ['HF_TOKEN'] = ''"),
        ('{"api_key": "abc"}', '{"api_key": ""}'), ("postgres://me:secretly@host/db", "postgres://me:@host/db"),
        ("AWS_SECRET_ACCESS_KEY=abcd/efgh", "AWS_SECRET_ACCESS_KEY="),
        ("GET /api?token=abcdef&x=1", "GET /api?token=&x=1"),
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_is_masked(text: str, kept: str) -> None:
    found = mask(text.encode()).decode()
    assert len(found) == len(text)
    assert found.replace("*", "") == kept


@pytest.mark.parametrize(
    "text",
    ["max_tokens=128", "tokens/s 17.3", "token = tokenizer(x)", "password = getpass()", "password == other",
     "def f(password: str): ...",
     "key = values['key']", "https://example.org/a:b@c", "print(f'password={pw}')", "hf_hub"],
)  # fmt: skip
def test_what_is_none_stays(text: str) -> None:
    data = text.encode()
    assert mask(data) is data


def test_secrets_are_shown_and_not_kept(mesh: Mesh) -> None:
    key = "hf_" + "Abc1" * 8
    assert run(
        mesh, f"login = '{key}'\nprint(login, 'umlaut ä', flush=True)\nprint('password=hunter2')"
    ).startswith(f"{key} umlaut ä")
    run(mesh, f"raise ValueError('{key}')")
    found = on_disk(mesh)
    assert key.encode() not in found
    assert b"hunter2" not in found
    assert b"password=*******" in found
    assert "umlaut ä".encode() in found
    assert mesh.history()[-2].source.startswith(f"login = '{key}'"), (
        "while it runs, the mesh can run it again"
    )


def test_a_cell_with_nolog_leaves_no_trace(mesh: Mesh) -> None:
    assert run(mesh, "# nolog: this one is mine\nprint('whisper'); x = 1") == "whisper\n"
    run(mesh, "  #nolog\nraise ValueError('whispered')")
    found = on_disk(mesh)
    assert b"whisper" not in found
    entry = mesh.history()[-2]
    assert (entry.source, entry.status) == ("# nolog", "ok")
    seen = Seen()
    result = mesh.journal.replay(mesh.history()[-1], seen).wait(T)
    assert result.failures[0].type == "ValueError", "that it failed is known"
    assert any("not kept" in s for s in seen.sentences)
    run(mesh, "print('aloud')")
    assert b"aloud" in on_disk(mesh)


def change(mesh: Mesh, *words: str) -> None:
    class State:
        current = mesh.name

        def mesh(self, name: str | None) -> Mesh:
            return mesh

    settings.set_(State(), Namespace(setting="journal", value=list(words), name=None))  # type: ignore[arg-type]


def test_the_journal_can_be_turned_off_and_on(mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
    run(mesh, "print('kept')")
    on_disk(mesh)
    before = kept(mesh)
    change(mesh, "off")
    assert "sources and output of cells are not kept from now on" in capsys.readouterr().out
    assert run(mesh, "print('unheard')") == "unheard\n"
    run(mesh, "1 / 0")
    assert kept(mesh) == before
    assert "the journal isn't written: it was turned off" in mesh.history().text()
    assert "not written: it was turned off" in mesh.status().text()
    change(mesh)
    assert "off" in capsys.readouterr().out
    change(mesh, "on")
    run(mesh, "print('kept again')")
    found = on_disk(mesh)
    assert b"kept again" in found
    audit = Path(mesh.status().journal, AUDIT)
    wait_until(lambda: b"kept again" in audit.read_bytes(), "the audit is written again")
    assert b"unheard" not in audit.read_bytes(), "who did something stays, but not what"
    assert b"unheard" not in found.replace(b"print('unheard')", b""), "what was printed meanwhile is gone"


def test_how_long_it_is_kept_can_be_said(
    mesh: Mesh, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "kept on disk for 30 days: %mesh set journal DAYS|off" in mesh.history().text()
    change(mesh, "7", "days")
    assert "are kept for 7 days in" in capsys.readouterr().out
    assert "kept on disk for 7 days" in mesh.history().text()
    assert keep_s(mesh.status().journal) == 7 * DAY_S
    for wrong in ("0", "-3", "soon", "7 weeks", "1e9"):
        with pytest.raises(MeshUsageError, match=r"%mesh set journal: expected DAYS\|on\|off, not"):
            change(mesh, wrong)
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    root = Path(launch.journal_root())
    for name, days in (("short", 1.0), ("long", 100.0)):
        (root / name).mkdir(parents=True)
        set_keep_s(str(root / name), days * DAY_S)
        for path in (root / name / "kept-for-seconds", root / name):
            os.utime(path, (time.time() - 50 * DAY_S,) * 2)
    launch.new_journal("next")
    assert [p.name for p in root.iterdir()] == ["long"]
