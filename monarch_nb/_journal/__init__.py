"""The journal of a mesh, on disk: what ran, who ran it, how it ended, and what the ranks printed.

record   one piece of output: a fixed header and its bytes
output   all pieces in order, in files of bounded size; the oldest go when there is too much
entries  cells, calls and commands, one JSON object a line

The controller writes; programs that outlive it (`monarch-nb history`) read. No threads, no policy about who
may ask.
"""
