"""Facts that may not change while code moves: they are recorded, with seeded runs and a comparison of trees.

``facts`` is compared by every test run and written by ``python -m tests.frozen.record``; whoever records again says in
the commit what changes on other people's machines, and why. ``runs`` and ``moves`` are commands for whoever moves code.
"""
