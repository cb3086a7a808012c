"""The host process: one per machine and mesh. It owns that machine's ranks and passes messages on.

Single-threaded: one loop (`loop`) owns every socket, pipe and pidfd, so nothing here needs a lock. It never
imports torch; the zygote, its child, does (`_rank.zygote`).

    main         where it begins
    controller   what only the first host process of a mesh does, for all of the mesh
    agent        what each host process does for the ranks of its machine, the first one included

Imports run one way: `main` knows `controller`, which knows `agent`, which knows what both use:

    loop         readiness and timers
    request      why a request can't be done
    starting     how a host process is started; warming: how its zygote is
    capacity     how many ranks a machine has room for
    launcher     what engines run on each host; pool: hosts that wait in a directory for meshes
"""
