"""The version of the protocol over REST and WebSocket."""

PROTOCOL = 1
"""`labextension/src/protocol.ts` has the same number."""
