"""Absent sites and the reasons."""
