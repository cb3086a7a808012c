"""Programs that torchrun would start: the environment they expect, on each process of a mesh.

environment  setup_torch_elastic_env: RANK, WORLD_SIZE, MASTER_ADDR ... on all processes
runner       SPMDActor: runs a script on each process as torchrun would
"""

from monarch_nb.spmd.environment import (
    AddrType,
    elastic_environment,
    setup_torch_elastic_env,
    setup_torch_elastic_env_async,
)
from monarch_nb.spmd.runner import SPMDActor

__all__ = ["AddrType", "SPMDActor", "elastic_environment", "setup_torch_elastic_env", "setup_torch_elastic_env_async"]
