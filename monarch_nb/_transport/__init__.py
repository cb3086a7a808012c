"""The transport of one process: its sockets, who reads them, and who waits for what.

Every client and every rank has one `Transport` in each mesh that it is in: its own, and
those that it's a guest in. A transport binds one PULL socket at the path that its proc id names and connects
one PUSH socket to each process on the same machine that it writes to; what is for other machines goes to its
own host process. ROUTER and DEALER, which the ZeroMQ guide's Harmony pattern uses, would add an identity
frame to each message and give nothing here, since the header names the sender.

    reader    which thread reads the PULL socket: normally the one that waits for the answer
    pending   what waits for an answer: calls, streams, channels
    transport    sockets, routes, sending, and where each arrived message goes
    call      the one way to make a call and to answer it
    port      a handle on something that waits in another process
    failure   an error on its way to the caller, as plain data
    origin    in whose name something is done: a cell's number
    context   which call the running code belongs to
    process_context  this process: its transports, and its rank if it is one
"""
