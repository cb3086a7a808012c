"""The tutorial about the debugger with somebody who types: each cell's lines are in its metadata."""

from __future__ import annotations

from pathlib import Path

import nbformat
from typist import Typist

TUTORIAL = Path(__file__).parents[2] / "notebooks" / "07_debugging.ipynb"


def test_the_walk_through_sixteen_ranks() -> None:
    cells = [c for c in nbformat.read(TUTORIAL, as_version=4).cells if c.cell_type == "code"]
    typist, texts = Typist(), []
    try:
        for cell in cells:
            lines = cell.metadata.get("typed", [])
            first = {"p weight": "(mesh-pdb 3,7,11,15) ", "p x": "(mesh-pdb 0-7) "}.get(
                lines[0] if lines else "", ""
            )
            prompts, shown = typist.run(cell.source, *lines, first=first)
            assert len(prompts) == len(lines), (cell.source, shown)
            texts.append(shown)
    finally:
        typist.run("%mesh stop -f")
        typist.close()
    text = "\n".join(texts)
    assert "ranks 3,7,11,15: ZeroDivisionError: float division by zero" in text
    assert "[3,7,11,15] [1.0, 2.0, 0.0]" in text and "[7] {'hosts': 1/4, 'gpus': 3/4}" in text
    assert "[3, 7, 11, 15] ZeroDivisionError: float division by zero in scale\n0.0" in text
    assert "[4] 16" in text and "[2] 104\n[5] 125" in text and "[7] done 50" in text
    assert "1 In [" in text and "2 In [" in text
    assert "rank 11 never entered it" in text and "load_batch" in text
