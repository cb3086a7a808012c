"""A path over several TCP streams between machines, with checksums: the data plane uses `path`."""
