"""Finds out which transports machines have, how fast each path between ranks is, and what to change.

probe      what a process finds on its machine
benchmark  what a rank does while paths are measured; `measuring` directs it
advice     what to change on one machine; `advice_mesh`: between machines
report     all of it, as `%mesh doctor` shows it
"""
