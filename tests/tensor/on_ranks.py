"""The modules of `parallelize` that a rank has: for tests that look at them there."""

from __future__ import annotations

import gc

from monarch_nb._rank.tensor.modules import OnRank


def modules_of(seed: int) -> list[OnRank]:
    """On a rank: the modules that were made after this seed of torch's was set."""
    return [each for each in gc.get_objects() if type(each) is OnRank and each._spec.seed == seed]
