"""The driver, one process of a server: side A's rounds, side B's answers to A, and timed duties."""
