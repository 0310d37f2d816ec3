"""Shares on the disk: whole, in parts, and uploads that are not complete yet."""
