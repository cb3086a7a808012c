"""Paths of the notebook's machine as they are on a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_nb._protocol.base import decode, encode
from monarch_nb._protocol.environment import RankEnvironment, UseEnvironments

ROOTS = (("/home/me/proj", "/s/src1"), ("/home/me/proj/.venv", "/s/env"), ("/opt/py", "/s/base"))
ENVIRONMENT = RankEnvironment("ab", "/s/env/bin/python", ("/s/env/lib",), ROOTS, "/s/env", "/s.lock")


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("/home/me/proj/.venv/lib", "/s/env/lib"),
        ("/home/me/proj/x", "/s/src1/x"),
        ("/home/me/proj2", "/home/me/proj2"),
        ("", ""),
        ("/opt/py", "/s/base"),
    ],
)
def test_the_innermost_root_counts(path: str, there: str) -> None:
    assert ENVIRONMENT.translated(path) == there


def test_what_the_workspace_has_is_the_workspaces() -> None:
    path = ["/home/me/proj", "/home/me/proj/.venv/lib", "/home/me/proj/sub"]
    assert ENVIRONMENT.translated_path(path, ["/home/me/proj"]) == [
        "/home/me/proj",
        "/s/env/lib",
        "/home/me/proj/sub",
    ]
    assert ENVIRONMENT.translated_path(path, ["/home/me"]) == ["/s/src1", "/s/env/lib", "/s/src1/sub"]


def test_variables_that_lead_into_another_environment_are_dropped(tmp_path: Path) -> None:
    given = {
        "PYTHONPATH": "/x",
        "PYTHONHOME": "/y",
        "LD_LIBRARY_PATH": "/z",
        "VIRTUAL_ENV": "/v",
        "PATH": "/bin",
        "HOME": "/h",
    }
    assert ENVIRONMENT.variables(given) == {"PATH": "/s/env/bin:/bin", "HOME": "/h", "VIRTUAL_ENV": "/s/env"}
    (tmp_path / "conda-meta").mkdir()
    conda = RankEnvironment("ab", "p", (), (), str(tmp_path))
    assert conda.variables(given) == {
        "PATH": f"{tmp_path}/bin:/bin",
        "HOME": "/h",
        "CONDA_PREFIX": str(tmp_path),
    }
    assert RankEnvironment("ab", "p", ()).variables(given) == given, "its own environment: nothing is changed"


def test_it_crosses_the_wire() -> None:
    sent = UseEnvironments({3: ENVIRONMENT})
    assert decode(UseEnvironments, encode(sent)) == sent
