"""The wire format: the messages between two processes, and their layout in bytes.

This room has no threads, no sockets and no policy: message layout (`message`), values to bytes and back
(`codec`), big buffers in shared memory (`segment`), who is who (`address`), where their sockets lie
(`directory`), and keys (`keys`). Everything above agrees on these.
"""
