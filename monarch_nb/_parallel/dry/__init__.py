"""A forward without values: shapes, costs, and layers that look across the batch.

outcome    what is known in the end, and why a forward can't be followed
values     tensors without values
following  follows operations, layer by layer
local      as one rank sees it
whole      as one tensor over all ranks
runner     both, until each layer that looks across the batch is known
"""
