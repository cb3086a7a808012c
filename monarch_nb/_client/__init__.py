"""A program's connection to a mesh.

launch      start a host process, read and list connection files
session     connect to one; requests; what comes unasked (ends, failures, output)
feed        what is watched: a cell, a stretch of the journal
output      what ranks print for calls of this program, folded
notebook    which cell of a notebook a call belongs to
interrupts  Ctrl-C while ranks work is passed on to them
spare       a host process warmed up before it's asked for
"""
