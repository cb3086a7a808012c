"""The modules of each host process, which serves the ranks of its machine.

    process      the host process: its sockets, and what it answers
    agent        a host process that dials the controller and does what it says
    supervisor   ranks: start, watch, interrupt, kill; rank_command: by a command instead of a fork
    zygote_switch  a second zygote, in another environment, takes the first one's place
    heartbeat    whether ranks react
    output       what ranks print: cut into pieces
    router       messages between this machine and others
    resource_monitor  what ranks do and use; sampler, gpus: where it comes from
    stack_service  stacks of ranks that don't answer; dump_request: has them written
    dumped       stacks as faulthandler and py-spy write them
    workspace_service  files of a notebook's workspace

Nothing here knows the controller's modules: what goes there is a message.
"""
