"""Displays that stay on screen and fetch a mesh's state by themselves.

card         `mesh` as the last line of a cell: a picture that is kept up to date
mesh_widget  the card as a widget, for front ends without our extension; its buttons ask the table of commands
top          a mesh's state again and again, for terminals
"""
