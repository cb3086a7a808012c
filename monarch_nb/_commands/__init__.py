"""The commands on meshes, in one table that `%mesh` in a notebook, `monarch-nb` in a terminal, REST and the
card's buttons read, so that help, flags and errors are written once.

table      the commands: name, help, arguments, where it can be asked, what runs, how that's shown
command    the types of the table
arguments  arguments that several commands have
settings   what `%mesh set` knows
actions    what runs: each takes a mesh and arguments
values     readers of what is typed, each with a clear error
parser     argparse that raises, and its errors
refusal    whatever goes wrong, in one clear error
starting, clusters, running, script   how a mesh is started, from what was typed; a script's run

Importing the table loads nothing heavy; an action loads what it needs.
"""
