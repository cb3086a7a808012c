"""The host process: one per machine and mesh. It owns that machine's ranks and passes messages on.

Single-threaded: one loop (`loop`) owns every socket, pipe and pidfd, so nothing here needs a lock. It never imports torch; the
`zygote`, its child, does.

    process      puts the parts together; answers requests
    loop         readiness and timers
    supervisor   ranks: start, watch, interrupt, kill
    output       what ranks print: cut into pieces, kept on disk, passed on
    router       messages between this machine and others
    registry     the home's books: hosts, procs, clients, names
    zygote       a warm interpreter that forks ranks; a process of its own
    launch       how a client starts a host process
"""
