"""Tensors of a mesh: one program, written as for one device, computes on all ranks.

The controller's tensors have no data. What is done to them goes to the ranks as a stream of commands that
nobody waits for; autograd and optimisers run on the controller. A value is *global* (one tensor, sharded: a
DTensor on the ranks) or *per-rank* (each rank has its own).

    metadata      shapes and layouts, interned; sharding specs by names of axes
    tensor        the subclass
    operators     `x + y` without torch's dispatch
    slots         places in the ranks' tables
    plan          keys and templates: what an operation is without its tensors
    operation     a call of an operator, and whether its tensors can be used together
    propagation   shapes and placements of results
    results       how a result is put together
    stream        the commands, and when they're sent
    compiled      functions whose commands are recorded and replayed
    place         the user's line of each command
    failure       errors that name operation, ranks, layer and line
    controller    one mesh's engine
    adopted       plain tensors that were sent as arguments of operations
    distribute    plain tensors to ranks
    movement      values that come back, and layouts that change
    module        modules whose parameters are tensors of the mesh
    plans         which layers are split over ranks, as users write it
    worker        the actors on the ranks
"""
