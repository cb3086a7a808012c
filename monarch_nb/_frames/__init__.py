"""Determines whose code a frame is (the user's, a library's, or this package's), and the names of cells.

The one place that knows. Live state, `%mesh why`, stacks, the debugger, tracebacks and memory profiles all
ask here, so they name the same line. Imports nothing else of this package.

`owner` says whose a frame or a file is; `cells` turns the made-up file names of cells into their numbers;
`elsewhere` knows where folders of the notebook's lie on this machine.
"""
