"""In what a host differs, in words; and an interpreter that can't list its packages."""

from __future__ import annotations

import os
import sys

import pytest

from monarch_nb._host.agent.package_service import look
from monarch_nb._sync.env.packages import PackageDigest
from monarch_nb.mesh.drift import package_text

NUMPY = PackageDigest("2.1", "aa")


def test_versions_builds_and_what_is_missing_are_told_and_what_is_only_there_is_not() -> None:
    here = {"einops": PackageDigest("0.8", "bb"), "numpy": NUMPY, "rich": PackageDigest("14", "cc")}
    there = {"numpy": PackageDigest("1.26", "dd"), "rich": PackageDigest("14", "ee", True), "more": NUMPY}
    assert package_text(here, there) == (
        "einops isn't there, numpy 1.26 (2.1 here), rich 14 edited by hand: "
        "%mesh sync --env, or see %mesh diff --env --hosts"
    )
    assert "rich 14 of another build: " in package_text(here, {**here, "rich": PackageDigest("14", "ee")})
    assert package_text({"numpy": NUMPY}, there | {"numpy": NUMPY}) == ""


def test_many_are_counted() -> None:
    here = {f"p{n}": NUMPY for n in range(8)}
    assert package_text(here, {}).startswith("p0 isn't there, p1 isn't there, p2 isn't there, 5 more: ")


def test_an_interpreter_that_can_not_say_what_it_has_is_named_with_its_last_words() -> None:
    found = look(
        [sys.executable, "-c", "from monarch_nb._sync.env.installed import main; main()"], dict(os.environ)
    )
    assert found["python"].version == sys.version.split()[0] and "pytest" in found
    with pytest.raises(
        RuntimeError, match="can't list its packages: ModuleNotFoundError: No module named 'none'"
    ):
        look([sys.executable, "-c", "import none"], dict(os.environ))
