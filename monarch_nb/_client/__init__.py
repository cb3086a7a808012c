"""A program's connection to a mesh: how it finds or starts a mesh, sends requests, and receives events.
`README.md` beside this file describes the modules.
"""
