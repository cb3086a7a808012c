"""What crosses processes, as types: whoever sends and whoever takes a message speak of the same fields.

A type is a frozen dataclass. `plain` turns it into dicts, lists, text and numbers, which is what stands in
a message; `of` makes it of those again, and refuses what it doesn't know. In between, nobody handles loose
dicts. Imports nothing of this package but this.

`exits` says how a rank ended; `states` are the words for what hosts and ranks are at.
"""
