"""Packages that differ between hosts."""

from __future__ import annotations

from monarch_nb._sync.env.packages import MISSING, PackageDigest, compare_packages, digest_of
from monarch_nb._sync.env.records import Claim, Package

SITE = "lib/python3.11/site-packages"


def claims(**files: str) -> dict[str, Claim]:
    return {f"{SITE}/{name.replace('__', '/')}": Claim(sha, 1, 0, 0) for name, sha in files.items()}


def test_equal_packages_are_no_difference() -> None:
    one = {"a": PackageDigest("1", "x"), "b": PackageDigest("2", "y")}
    assert compare_packages({"here": one, "host 1": dict(one)}) == ()


def test_what_is_missing_another_version_another_build_and_edited_are_told() -> None:
    here = {"a": PackageDigest("1", "x"), "b": PackageDigest("2", "y" * 64), "c": PackageDigest("3", "z")}
    there = {
        "b": PackageDigest("2", "w" * 64),
        "c": PackageDigest("3", "v", edited=True),
        "d": PackageDigest("4", "u"),
    }
    found = {
        each.name: dict(each.groups)
        for each in compare_packages({"here": here, "host 1": there, "host 2": there})
    }
    assert found == {
        "a": {("host 1", "host 2"): MISSING, ("here",): "1"},
        "b": {("host 1", "host 2"): "2 (wwwwwwww)", ("here",): "2 (yyyyyyyy)"},
        "c": {("host 1", "host 2"): "3, edited by hand", ("here",): "3"},
        "d": {("host 1", "host 2"): "4", ("here",): MISSING},
    }


def test_what_an_installer_adds_is_no_difference() -> None:
    wheel = claims(alpha__x="1" * 64)
    by_pip = Package(
        "alpha", "1", {**wheel, **claims(INSTALLER="2" * 64), "bin/alpha": Claim("3" * 64, 1, 0, 0)}, ()
    )
    assert digest_of(by_pip) == digest_of(Package("alpha", "1", wheel, ()))
    assert digest_of(by_pip, ["alpha/x"]) != digest_of(by_pip)
    assert digest_of(Package("alpha", "1", claims(alpha__x="4" * 64), ())).digest != digest_of(by_pip).digest
