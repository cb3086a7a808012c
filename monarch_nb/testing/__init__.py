"""For tests of programs that run on meshes: `chaos` breaks things on purpose."""
