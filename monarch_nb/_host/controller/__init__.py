"""The services of the controller, which is the first host process of a mesh. `controller` is composed of
them:

    registry     which hosts, procs, groups, clients and names there are; pure data
    clients      programs that use the mesh; lease, lease_state: how long it lives; names
    mesh_name    the claim to a name; handover: a controller that was started for nobody yet
    hosts        other machines; link: the sockets to them; invitations: hosts of an engine that come in
    ranks        how they start and end; waiting: who waits for that; exits: who hears of ends, in which order
    cells        which cell runs on which ranks; cell_states: how it ends (pure), by cell_events
    definitions  cells that later ranks get, too
    escalation   how far one has gone to end a cell (pure); interrupts: who wants that
    journal_service  what was done and printed; output_service, watch: who is shown what of it; left_out: what
                 isn't shown where a display doesn't keep up (pure)
    asking       questions to ranks
    environment  what a mesh runs with, for the journal; environments: what each host's ranks start in
    status_publisher  the state, live
    stack_requests  stacks, and what ranks wait for
    debug_service   who stands at a breakpoint
    question_service  what ranks ask whoever can type
    healing      what is done about losses, as heal_states and heal_steps decide (pure); orphans, reshaping,
                 spawn_specs, groups, checkpoints, singletons; workflow: steps that wait for answers

`controller` derives from `agent.process`: the controller's machine has ranks like any other.
"""
