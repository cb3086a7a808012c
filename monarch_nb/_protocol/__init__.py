"""The types of all messages between processes, shared by sender and receiver.

`base` says what a request, its answer and an event are, and how they're encoded; `registry` who handles
which. The others have the types, by what they're about. On the wire each is msgpack, checked against its type
when it's read: **nothing in a control message needs pickle**, so reading one never runs code. Values of the
user's (arguments, variables, exceptions, classes) stay what their sender has encoded, as opaque bytes.
`tests/unit/test_messages.py` sees to it. Imports nothing of this package but this.

`exits` says how a rank ended, `failure` what was raised; `states` are the words for what hosts and ranks are
at.
"""
