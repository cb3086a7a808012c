"""The rank: the process in which user code runs.

Three kinds of thread: the main thread runs cells and functions (`worker`), each actor has its own
(`_runtime.actors`), and a background reader (`_transport.reader`) makes sure that somebody reads messages
while those are busy, so that a rank always answers. `README.md` beside this file says what lies where.
"""
