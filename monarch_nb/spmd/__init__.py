"""Programs for torchrun, on the processes of a mesh: `SPMDActor` runs a script with the environment that
torchrun sets.
"""

from monarch_nb.spmd.environment import (
    AddrType,
    elastic_environment,
    setup_torch_elastic_env,
    setup_torch_elastic_env_async,
)
from monarch_nb.spmd.runner import SPMDActor

__all__ = [
    "AddrType",
    "SPMDActor",
    "elastic_environment",
    "setup_torch_elastic_env",
    "setup_torch_elastic_env_async",
]
