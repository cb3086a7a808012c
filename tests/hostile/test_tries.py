"""The full form is as long as it should be: counted by what was done, not by what was meant to be."""

from __future__ import annotations

import pytest
from hostile import FULL, TRIES

MIN_TRIES = 3_000
KINDS = {"test_absurd_verbs", "test_hostile_cells", "test_kills", "test_malformed_frames"}

pytestmark = pytest.mark.soak


@pytest.mark.skipif(not FULL, reason="the short form has fewer: make soak")
def test_enough_was_tried(request: pytest.FixtureRequest) -> None:
    chosen = {item.path.stem for item in request.session.items}
    if not chosen >= KINDS:
        pytest.skip("not all of tests/hostile runs")
    assert TRIES.total() >= MIN_TRIES, TRIES
