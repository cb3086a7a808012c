"""The wire format: the messages between two processes, and their layout in bytes.

This room decides nothing about who may do what, and sends nothing: message layout (`message`), values to
bytes and back (`codec`), big buffers in shared memory (`segment`), who is who (`address`), where their
sockets lie (`directory`), and keys (`keys`, whose `Gatekeeper` answers ZeroMQ's question which of them may
connect). Everything above agrees on these.
"""
