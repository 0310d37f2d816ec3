"""Holds in every test: one example of hypothesis may take as long as a busy machine needs; a test has its timeout."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("busy", deadline=None)
settings.load_profile("busy")
