"""Several TCP streams between machines, with checksums: `path` is what the data plane asks."""
