"""Tensors of the mesh on a rank: a table of values, and the operations on them.

    protocol   what crosses: definitions of plans and grids, failures, decisions
    compiler   a plan becomes a Python function
    whole      operations that work on whole tensors only, random numbers
    collective reductions along an axis, values that go from rank to rank
    meshes     device meshes, and process groups of the engine's own
    modules    modules that a forward and a backward are one command each of
    tensor_parallel  layers of theirs that ranks share
    executor   the table and the interpreter of the command stream

Knows no actors and no messages; `monarch_nb._tensor.worker` brings those.
"""
