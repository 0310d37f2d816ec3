"""Attacks by a server: what it learns from all it stores, and what it falsifies, alone or with help."""
