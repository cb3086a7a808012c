"""Modules that zygotes of tests import besides what ranks need. It stands apart from other helpers:
`own_preload` in `conftest` reads those that a file imports, and has zygotes import torch if one speaks of it.
"""

PRELOAD_TO_TRAIN = "torch,torch.distributed.tensor,torch._dynamo"
"""What zygotes import where ranks train: each rank would import it, for more than a second."""
