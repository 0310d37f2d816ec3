"""Rounds: contributions, measurement, release, and how a round ends."""
