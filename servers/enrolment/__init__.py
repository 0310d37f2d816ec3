"""Enrolment: a server from nothing, invitations, and the first roster and its changes."""
