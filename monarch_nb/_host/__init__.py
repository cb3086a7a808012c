"""The host process: one per machine and mesh. It owns that machine's ranks and passes messages on.

Single-threaded: one loop (`loop`) owns every socket, pipe and pidfd, so nothing here needs a lock. It never
imports torch; the zygote, its child, does (`_rank.zygote`).

    main         where it begins
    process      what controller and host agents share
    request      which service answers what is asked, by the name of a method
    controller         the first one, and its services
    agent        dials the controller and does what it says
    loop         readiness and timers
    supervisor   ranks: start, watch, interrupt, kill
    output       what ranks print: cut into pieces
    router       messages between this machine and others

The controller's services, and what they use:

    registry     which hosts, procs, groups, clients and names there are; pure data
    clients      programs that use the mesh; lease, lease_state: how long it lives; names
    hosts        other machines; link: the sockets to them
    ranks        how they start and end; waiting: who waits for that; exits: who hears of ends, in which order
    cells        which cell runs on which ranks; cell_states: how it ends (pure), by cell_events
    escalation   how far one has gone to end a cell (pure); interrupts: who wants that
    journal_service what was done and printed; output_service, watch: who is shown what of it
    asking       questions to ranks
    environment  what a mesh runs with, for the journal
    status_publisher  the state, live; resource_monitor, sampler, gpus: where it comes from
    looks        stacks, and what ranks wait for; stack_service: of those that don't answer
    debug_service   who stands at a breakpoint
    question_service  what ranks ask whoever can type
    healing      what is done about losses, as heal_states decides (pure); orphans, reshaping, spawn specs,
                 groups, checkpoints
"""
