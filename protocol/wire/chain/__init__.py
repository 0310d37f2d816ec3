"""The roster as a chain of signed changes (docs/protocol.md 20): its links, their checks, words and files."""
