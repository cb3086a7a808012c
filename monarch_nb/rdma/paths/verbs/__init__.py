"""A path by RDMA verbs between machines, with pyverbs: the data plane uses `path`."""
