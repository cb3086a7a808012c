"""The actor runtime of one process: a rank's, or that of a program which has actors of its own.

Calls arrive in the reading thread (`actor_host`, which never blocks there) and are handled in the actor's own
thread (`actors`).

    actor_host   which actor a call is for; spawning and stopping
    actors       one actor: its thread, its messages, its failure
    inbox        messages that wait
    checkpoints  when an actor's state is saved; snapshot: copies of it
    awaiting     where the calls of async actors await
    described    failures as processes have described them
    supervision  MeshFailure, and the program's hook for failures that nobody waited for
    kept         results that stay here, for handles on them
    log_names    what an actor logs says which actor it is
    forked       ends children that come back from user code
"""
