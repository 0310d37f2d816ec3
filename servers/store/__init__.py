"""Durable state: the database, the files of shares, and uploads that are not complete."""
