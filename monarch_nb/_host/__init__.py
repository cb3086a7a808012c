"""The host process: one per machine and mesh. It owns that machine's ranks and passes messages on.

Single-threaded: one loop (`loop`) owns every socket, pipe and pidfd, so nothing here needs a lock. It never imports torch; the
`zygote`, its child, does.

    main         where it begins
    process      what home and far host processes share
    home         registry, journal, lease, requests of clients
    far          dials home and does what it says
    loop         readiness and timers
    supervisor   ranks: start, watch, interrupt, kill
    output       what ranks print: cut into pieces
    router       messages between this machine and others
    registry     the home's books: hosts, procs, clients, names
    cells        which cell runs on which ranks, and how it ends
    ladder       what is done about a cell that shall end
    watch        who is shown what of the journal
    asking       questions to ranks
    environment  what a mesh runs with, for the journal
    zygote       a warm interpreter that forks ranks; a process of its own
"""
