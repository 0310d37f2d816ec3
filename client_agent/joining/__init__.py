"""Joining a federation: two invitations, admission by people, the first roster."""
