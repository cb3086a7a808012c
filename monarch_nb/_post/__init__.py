"""The post office of one process: its sockets, who reads them, and who waits for what.

Every process of a mesh (client, rank) has exactly one `Office`. It binds one PULL socket at the path that its proc id names and
connects one PUSH socket to each process on the same machine that it writes to; what is for other machines goes to its
own host process. ROUTER and DEALER, which the ZeroMQ guide's Harmony pattern uses, would add an identity frame to each message and
give nothing here, since the header names the sender.

    reader    which thread reads the PULL socket: normally the one that waits for the answer
    pending   what waits for an answer: calls, streams, channels
    office    sockets, routes, sending, and where each arrived message goes
"""
