"""The rank: the process in which user code runs.

Three kinds of thread: the main thread runs cells and functions (`worker`), each actor has its own (`actors`),
and a background reader (in
`_transport.reader`) makes sure that somebody reads the mail while those are busy, so a rank always answers.

    zygote    a warm interpreter that forks ranks; a process of its own
    main      from the fork to the end: environment, devices, signals, the main loop
    actors    actors, their threads and mailboxes
    worker    what runs on the main thread: cells, functions, push and pull
    shell     the IPython shell that cells run in
    command   `!command`
    variables what variables are, digests to compare them, names for Tab
    collectives  aborting them, and making the process group anew
    streams   stdout and stderr, marked with the cell they belong to
"""
