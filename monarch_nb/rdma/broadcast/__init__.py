"""Broadcasts: one buffer to many processes.

buffers        a buffer to others, which pass it on
hosts          big arrays to all ranks of a mesh, once to each machine
leader         the rank that brings them for all of its machine
ready_barrier  the others wait until they're there
"""
