"""Attacks by the requester: lists, models, queries, sums and releases of its choice."""
