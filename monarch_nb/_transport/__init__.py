"""The transport of one process: its sockets, the threads that read them, and the objects that wait for
messages.

Every client and every rank has one `Transport` in each mesh that it is in: its own, and those that it's a
guest in. A transport listens at the path that its proc id names and connects once to each process on the same
machine that it writes to (`_wire/local_sockets`); what is for other machines goes to its own host process,
and from there by ZeroMQ.

    reader    which thread receives: normally the one that waits for the answer
    pending   what waits for an answer: calls, streams, channels
    transport    sockets, routes, sending, and where each arrived message goes
    call      the one way to make a call and to answer it
    port      a handle on something that waits in another process
    failure   an error on its way to the caller, as plain data
    origin    in whose name something is done: a cell's number
    context   which call the running code belongs to
    process_context  this process: its transports, and its rank if it is one
"""
