"""A program's connection to a mesh.

launch    start a host process, read and list connection files
session   connect to one; requests; what comes unasked (ends, failures, output)
output    what ranks print, for those who listen
"""
