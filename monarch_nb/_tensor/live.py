"""Lists this program's values that take memory on the ranks, and the places where they were made."""

from __future__ import annotations

from monarch_nb._tensor.controller import Engine
from monarch_nb._tensor.engines import live_engines
from monarch_nb._tensor.slots import live_handles
from monarch_nb._units import size_text

SHOWN = 10


def biggest() -> str:
    """Return the source lines that created the most of the live memory on the ranks, the largest first; "" if
    nothing is live.

    Sizes are those of whole tensors; views count as what they show.
    """
    found: dict[str, tuple[int, int]] = {}
    engines = {engine.slots: engine for engine in live_engines()}
    for each in live_handles():
        if each.slots in engines:
            where = _place(engines[each.slots], each.seq)
            num, size = found.get(where, (0, 0))
            found[where] = (num + 1, size + (0 if each.meta is None else each.meta.num_bytes))
    if not found:
        return ""
    ordered = sorted(found.items(), key=lambda item: -item[1][1])
    lines = [
        f"  {size_text(size):>9}  {num:>5} tensor{'s' * (num != 1):<1}  {where}"
        for where, (num, size) in ordered[:SHOWN]
    ]
    rest = len(ordered) - SHOWN
    more = [f"  and those of {rest} lines more"] if rest > 0 else []
    return "\n".join(["tensors of the mesh, by the line that made them:", *lines, *more])


def _place(engine: Engine, seq: int) -> str:
    found = engine.places.of(seq, engine.stream.count)
    return str(found) if found is not None and str(found) else "made earlier"
