"""Hosts get content from the package index that they are configured to use, where it's the same there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from environments import Made, bare, make_venv
from runtime import make_runtime, result_of

from monarch_nb._sync.env import package_index
from monarch_nb._sync.env.manifest import Part
from monarch_nb._sync.env.package_index import MIN_BYTES, take_from_index
from monarch_nb._sync.env.place import missing_content
from monarch_nb._sync.env.store import Store

LONG = "x" * (2 * MIN_BYTES)
T = 120.0
TOOLS = os.path.dirname(sys.executable)


def install_three(made: Made, folder: Path) -> Path:
    """Install three distributions. Return a folder of wheels: it has the first, another build of the second,
    and none of the third.
    """
    installed, wheels = folder / "installed", folder / "wheels"
    installed.mkdir()
    wheels.mkdir()
    for name in ("same", "other", "absent"):
        made.install(made.wheel(installed, name, "1.0", extra={f"{name}/long.txt": f"{name} {LONG}"}))
    made.wheel(wheels, "same", "1.0", extra={"same/long.txt": f"same {LONG}"})
    made.wheel(wheels, "other", "1.0", extra={"other/long.txt": f"another {LONG}"})
    return wheels


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def taken_names(parts: list[Part], taken: object) -> set[str]:
    assert isinstance(taken, dict)
    return {e.path.rpartition("/")[2] for part in parts for e in part.entries if e.content in taken}


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_what_is_the_same_is_taken(
    tool: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_venv(tmp_path / "venv")
    wheels = install_three(made, tmp_path)
    for variable in ("UV_FIND_LINKS", "PIP_FIND_LINKS"):
        monkeypatch.setenv(variable, str(wheels))
    for variable in ("UV_NO_INDEX", "UV_OFFLINE", "PIP_NO_INDEX"):
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    if tool == "pip":
        monkeypatch.setattr(package_index, "_uv", lambda: None)
    scanned = made.scan(str(tmp_path / "cache.sqlite"))
    parts = list(scanned.parts.values())
    for part in parts:
        store.learn(part.text)
    missing = missing_content(store, parts)
    found = take_from_index(store, parts, missing, scanned.manifest.facts["python"], T)
    by_name = {part.name: part for part in parts}
    assert "long.txt" in taken_names([by_name["same"]], found.taken)
    assert "long.txt" not in taken_names([by_name["other"], by_name["absent"]], found.taken)
    assert found.problem.startswith("absent==1.0: ")
    left = missing_content(store, parts)
    assert missing.keys() - left.keys() == found.taken.keys()
    assert os.listdir(store._tmp) == []
    store.close()


def test_a_host_without_installers_says_so(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_venv(tmp_path / "venv")
    install_three(made, tmp_path)
    parts = list(made.scan(str(tmp_path / "cache.sqlite")).parts.values())
    missing = missing_content(store, parts)
    monkeypatch.setattr(package_index, "_uv", lambda: None)
    monkeypatch.setattr(package_index, "_has_pip", lambda: False)
    found = take_from_index(store, parts, missing, "3.11.7", T)
    assert (dict(found.taken), found.problem) == ({}, "it has neither uv nor pip")
    small = dict.fromkeys(missing, 1)
    assert take_from_index(store, parts, small, "3.11.7", T).problem == "", "there's nothing to ask for"
    store.close()


def test_a_host_gets_the_environment_from_its_index(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path / "venv")
    wheels = install_three(runtime, tmp_path)
    env = {
        **bare(),
        "MONARCH_NB_STORE": str(tmp_path / "home" / "store"),
        "WHEELS": str(wheels),
        "PATH": f"{TOOLS}:{os.environ['PATH']}",
    }
    program = str(Path(__file__).with_name("sending_program.py"))
    command = [runtime.python, program, "from_index", str(tmp_path / "hosts")]
    found = result_of(command, env, tmp_path, 220)
    assert found["first"]["done"], found["first"]["problems"]
    assert 2 * MIN_BYTES <= found["first"]["index"][0] < 3 * MIN_BYTES
    assert " MiB from its package index, " in found["first"]["lines"][0]
    assert any("its package index didn't give all: " in line for line in found["first"]["lines"])
    assert found["new"] == f"{found['first']['prefixes'][0]}/env"
