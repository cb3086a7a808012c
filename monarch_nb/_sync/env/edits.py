"""The manifest of an environment of which some files were edited, made without a look at all the others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from monarch_nb._sync.env import manifest
from monarch_nb._sync.env.layers import CODE, is_below
from monarch_nb._sync.env.manifest import Change, Entry, Manifest, PartName
from monarch_nb._sync.env.scan import LayerScan, Scanned


@dataclass(frozen=True)
class Edit:
    """An environment after some of its files were edited.

    Attributes:
        before: id of the environment as it was.
        scanned: the environment now.
        changes: by id of a part as it was, what is otherwise in it.
        sizes: by sha256, the size of content that may be new.
    """

    before: str
    scanned: Scanned = field(repr=False)
    changes: Mapping[str, tuple[Change, ...]]
    sizes: Mapping[str, int]


def after_edits(scanned: Scanned, touched: Iterable[str]) -> Edit | None:
    """Return an environment after files were written; None if it must be looked at as a whole: something is
    new, gone, a folder, or tells of other files. `scanned` isn't to be asked again then.

    Args:
        touched: absolute paths of all that something has happened to since.
    """
    by_part: dict[str, list[Change]] = {}
    for path in touched:
        if path.endswith((".pyc", "__pycache__")):  # looked at with its source
            continue
        layer = _layer_of(scanned.layers, path)
        found = None if layer is None else _looked_at(layer, path)
        if layer is None or found is None:
            return None
        for name, (part_name, entry) in found.items():
            part = _part_with(scanned, part_name, name)
            if part is None:
                return None
            by_part.setdefault(part, []).append(Change(name, entry))
    return _edit(scanned, {part: tuple(changes) for part, changes in by_part.items()})


def _edit(scanned: Scanned, changes: Mapping[str, tuple[Change, ...]]) -> Edit:
    parts = {
        new.id: new
        for each in scanned.parts.values()
        for new in [manifest.changed_part(each, changes[each.id]) if each.id in changes else each]
    }
    names = tuple(PartName(part.id, part.name, part.version) for part in parts.values())
    entries = [change.entry for several in changes.values() for change in several if change.entry is not None]
    new_sources = {
        entry.content: layer.sources[entry.content]
        for entry in entries
        for layer in scanned.layers
        if entry.content in layer.sources
    }
    edited = {name: tuple(paths) for layer in scanned.layers for name, paths in layer.edited.items()}
    now = replace(
        scanned,
        manifest=Manifest(scanned.manifest.facts, names),
        parts=parts,
        sources={**scanned.sources, **new_sources},
        edited=edited,
        num_bytes=sum(part.num_bytes for part in parts.values()),
        num_read=len(entries),
    )
    return Edit(scanned.manifest.id, now, changes, {entry.content: entry.size for entry in entries})


def _looked_at(layer: LayerScan, path: str) -> dict[str, tuple[str, Entry | None]] | None:
    try:
        return layer.after_edit(path[len(layer.layer.root) + 1 :])
    except OSError:  # it's just being written anew
        return None


def _layer_of(layers: Iterable[LayerScan], path: str) -> LayerScan | None:
    """Return the innermost layer that a path is in; None if that's source code, of which git decides."""
    inside = [each for each in layers if is_below(path, each.layer.root) and path != each.layer.root]
    found = max(inside, key=lambda each: len(each.layer.root), default=None)
    return None if found is None or found.layer.kind == CODE else found


def _part_with(scanned: Scanned, name: str, path: str) -> str | None:
    """Return the id of the part that has a path."""
    for part in scanned.parts.values():
        if part.name == name:
            at = bisect_left(part.entries, (path,))
            if at < len(part.entries) and part.entries[at].path == path:
                return part.id
    return None


__all__ = ["Edit", "after_edits"]
