"""Whole rounds of other systems and of ours, with real processes, measured from outside."""
