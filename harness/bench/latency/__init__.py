"""Seconds and round trips from lock to release, and of whole rounds."""
