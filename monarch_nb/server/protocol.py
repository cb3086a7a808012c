"""Which version is spoken over REST and WebSocket."""

PROTOCOL = 1
"""`labextension/src/protocol.ts` has the same number."""
