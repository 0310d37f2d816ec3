"""What one process of a server does for all of them: side A's rounds, side B's answers to A, and what time brings."""
