"""What TypeScript knows of a mesh's state is what Python sends: the file is generated, and committed."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from monarch_nb._protocol.base import Record
from monarch_nb._protocol.states import RankState

SCRIPT = Path(__file__).parents[2] / "labextension" / "generate_state.py"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_state", SCRIPT)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_committed_file_is_what_the_types_say() -> None:
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_file_that_isnt_is_refused_and_says_what_to_type(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    copy = Path(shutil.copy(SCRIPT, tmp_path))
    (tmp_path / "src" / "state.ts").write_text("export type RankState = 'idle';\n")
    check = [sys.executable, str(copy), "--check"]
    refused = subprocess.run(check, capture_output=True, text=True, check=False)
    assert refused.returncode == 1 and "type `make labextension`" in refused.stdout
    subprocess.run(check[:-1], check=True)
    assert (tmp_path / "src" / "state.ts").read_bytes() == (SCRIPT.parent / "src" / "state.ts").read_bytes()
    assert subprocess.run(check, check=False).returncode == 0


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int | None, "number | null"),
        (tuple[int | float, ...], "number[]"),
        (tuple[str | None, ...], "(string | null)[]"),
        (tuple[tuple[str, int], ...], "[string, number][]"),
        (Mapping[str, float], "{ [name: string]: number }"),
        (RankState, "RankState"),
    ],
)
def test_types_of_fields(generator: ModuleType, kind: Any, text: str) -> None:
    assert generator.type_text(kind) == text


def test_a_type_that_nobody_has_named_is_refused(generator: ModuleType) -> None:
    class Unknown(Record, frozen=True):
        """Something new."""

    with pytest.raises(TypeError, match=r"no type of TypeScript is known for .*Unknown"):
        generator.type_text(Unknown)


def test_each_record_that_a_status_holds_has_an_interface(generator: ModuleType) -> None:
    found: set[type] = set()

    def look(info: msgspec.inspect.Type) -> None:
        if isinstance(info, msgspec.inspect.StructType):
            found.add(info.cls)
            for field in info.fields:
                look(field.type)
        for name in ("types", "item_types"):
            for each in getattr(info, name, ()):
                look(each)
        for name in ("item_type", "value_type"):
            if hasattr(info, name):
                look(getattr(info, name))

    from monarch_nb.status import MeshStatus

    look(msgspec.inspect.type_info(MeshStatus))
    assert len(found) > 5 and found <= set(generator.TYPES)
