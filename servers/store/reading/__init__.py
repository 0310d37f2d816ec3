"""Statements as they go to the driver, and rows that were read and have not changed."""
