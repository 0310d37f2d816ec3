"""The roster's parties, its chain of signed changes, and enrolment (docs/protocol.md 1, 20)."""
