"""Types that a warm controller and the programs that may take it exchange: JSON in a file."""

from __future__ import annotations

from typing import Any, Self

from monarch_nb._protocol.kept import Kept

__all__ = ["Requirements", "WarmFacts"]

_VARIABLE = "variable "


class Requirements(
    Kept,
    frozen=True,
    rename={
        "rights": "user and rights",
        "limits": "resource limits",
        "root": "root directory",
        "cgroup": "control group",
    },
):
    """The facts that must agree between a program and a warm interpreter so that the program can use it.

    As JSON, each field has a name that people understand, and each variable is a field of its own.

    Attributes:
        python: executable, version, prefix, base prefix.
        packages: directories of packages, with the time of the last change of each, in ns; last this
            package's own, before it the number of its files.
        variables: environment variables that are read only once, when a library is loaded.
        rights: lines of /proc/PID/status: user, groups, capabilities, cores.
        signals: blocked and ignored signals, as bits.
        priority: niceness, scheduling policy, what the kernel's out-of-memory killer adds.
        limits: number, soft and hard limit of each resource.
        namespaces: as /proc/PID/ns names them.
    """

    machine: str
    python: tuple[str, ...]
    packages: tuple[tuple[str | int, ...], ...]
    variables: dict[str, str]
    rights: tuple[str, ...]
    signals: tuple[int, ...]
    priority: tuple[int, int, str]
    limits: tuple[tuple[int, int, int], ...]
    namespaces: tuple[str, ...]
    root: str
    cgroup: str

    def plain(self) -> dict[str, Any]:
        """Return the requirements as plain data, under readable names.

        >>> facts = Requirements("m", (), (), {"TZ": "UTC"}, (), (), (0, 0, "0"), (), (), "/", "")
        >>> facts.plain()["variable TZ"], Requirements.of(facts.plain()) == facts
        ('UTC', True)
        """
        found = super().plain()
        variables = found.pop("variables")
        return {**found, **{f"{_VARIABLE}{name}": value for name, value in variables.items()}}

    @classmethod
    def of(cls, found: Any) -> Self:
        """Return the requirements that `plain` has described.

        Raises:
            ValueError: if it's something else.
        """
        if not isinstance(found, dict):
            raise ValueError("these are no requirements of an interpreter")
        variables = {n.removeprefix(_VARIABLE): v for n, v in found.items() if n.startswith(_VARIABLE)}
        return super().of({**found, "variables": variables})


class WarmFacts(Kept, frozen=True):
    """The facts that a warm controller tells programs that may take it.

    Attributes:
        path: the module path that it has imported from.
        modules: top-level modules that it has imported, by the directory that they come from.
        requirements: facts that a program must have in common with it.
    """

    path: list[str]
    modules: dict[str, list[str]]
    requirements: Requirements

    def plain(self) -> dict[str, Any]:
        """Return the facts as plain data."""
        return {**super().plain(), "requirements": self.requirements.plain()}

    @classmethod
    def of(cls, found: Any) -> Self:
        """Return the facts that `plain` has described.

        Raises:
            ValueError: if it's something else.
        """
        if not isinstance(found, dict):
            raise ValueError("this isn't what a warm controller says of itself")
        return super().of({**found, "requirements": Requirements.of(found.get("requirements"))})
