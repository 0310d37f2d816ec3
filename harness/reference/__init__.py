"""Pages of reference that are made from the code: ``python -m harness.reference``."""
