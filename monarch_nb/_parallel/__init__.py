"""A module on all ranks, parallelised by torch's own means, chosen from a dry run.

dry           a forward without numbers: shapes, costs, and layers that look across the batch
rules         what ranks can do by themselves though torch has no rule for it
numbers       layers that are tried out, for no rule can tell
choice        what each strategy would need, and which is taken
tensor_proof  shows that layers which ranks share give what one process computes
tensor_plans  which layers those are: the user's, the model's own, or found ones
sharing       tensor parallelism of one module: its ranks, its plan, its costs
mismatch      errors that say which layer, which parameter, and what to type
explanation   the choice in words
changes       a module since ranks have it; by `attributes`, `contents`, `variables`
module        `parallelize`: the module that runs on the ranks
"""
