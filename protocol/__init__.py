"""The protocol as pure functions: bytes and arrays in, bytes and arrays out (docs/protocol.md)."""
