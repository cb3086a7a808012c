"""A module on all ranks, parallelised by torch's own means, chosen from a dry run.

dry_run       a forward without numbers: shapes, costs, and layers that look across the batch
rules         what ranks can do by themselves though torch has no rule for it
numbers       layers that are tried out, for no rule can tell
choice        what each strategy would need, and which is taken
mismatch      errors that say which layer, which parameter, and what to type
explanation   the choice in words
module        `parallelize`: the module that runs on the ranks
"""
