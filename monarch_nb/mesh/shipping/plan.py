"""The plan of a sync's dry run, part by part: what would be sent to a host, from where, and why. Nothing is
written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from monarch_nb._sync.env.manifest import LINK, Part
from monarch_nb._units import counted, size_text

MAX_SHOWN = 8


@dataclass(frozen=True)
class PlannedPart:
    """A package, or another part of an environment, as it would be sent to a host.

    Attributes:
        name, version: name and version of the package; no version: files outside of packages.
        num_bytes: its size.
        stored_bytes: bytes of it that the host has already: in its store, or elsewhere.
        sent_bytes: what would go over the network with it; what several parts have goes once.
        reason: why the host lacks it.
    """

    name: str
    version: str
    num_bytes: int
    stored_bytes: int
    sent_bytes: int
    reason: str

    @property
    def source(self) -> str:
        """Where it would come from: "here", "the host", or both."""
        if self.stored_bytes == self.num_bytes:
            return "the host"
        return "here and the host" if self.stored_bytes else "here"

    def text(self) -> str:
        """Return such as `numpy 2.1.0, 18 MiB from here: 2.0.1 is there`."""
        named = f"{self.name} {self.version}".rstrip()
        of = f" of {size_text(self.num_bytes)}" if self.stored_bytes else ""
        return f"{named}, {size_text(self.sent_bytes)}{of} from {self.source}: {self.reason}"


def planned(
    parts: Collection[Part], lacking: Mapping[str, int], versions: Mapping[str, str]
) -> tuple[PlannedPart, ...]:
    """Return how parts would come to a host, what goes over the network first; content that several parts
    have goes with the first.

    Args:
        parts: that the environment consists of.
        lacking: content that the host hasn't, by sha256.
        versions: of the packages that ranks of the host are started with now.
    """
    left = dict(lacking)
    found = []
    for part in parts:
        contents = {e.content: e.size for e in part.entries if e.kind != LINK}
        stored = sum(size for content, size in contents.items() if content not in lacking)
        sent = sum(left.pop(content, 0) for content in contents)
        reason = _reason(part, versions.get(part.name, ""))
        found.append(PlannedPart(part.name, part.version, sum(contents.values()), stored, sent, reason))
    return tuple(sorted(found, key=lambda each: (-each.sent_bytes, -each.num_bytes, each.name)))


def _reason(part: Part, there: str) -> str:
    if not part.version:
        return "it belongs to no package"
    if not there:
        return "it isn't there"
    return f"{there} is there" if there != part.version else "it's there, in the host's own environment"


def plan_lines(parts: Collection[PlannedPart]) -> list[str]:
    """Return a line for each of the largest parts that would go, and one for what is left."""
    going = [each for each in parts if each.sent_bytes]
    lines = [each.text() for each in going[:MAX_SHOWN]]
    rest = going[MAX_SHOWN:]
    if rest:
        lines.append(f"{len(rest):,} more, {size_text(sum(each.sent_bytes for each in rest))} from here")
    kept = [each for each in parts if each.stored_bytes == each.num_bytes]
    if kept and going:
        size = size_text(sum(each.num_bytes for each in kept))
        lines.append(f"{counted(len(kept), 'part')}, {size}: on the host already")
    return lines
