"""Retention: studies that are over are deleted, silent requesters' studies paused."""
