"""RDMA verbs between machines, by pyverbs: `path` is what the data plane asks."""
