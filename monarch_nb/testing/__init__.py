"""Tools for tests of programs that run on meshes: `chaos` injects faults."""
