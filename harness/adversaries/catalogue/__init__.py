"""Named attacks on the protocol: each with the defence that is to hold, a figure, and a run without that defence."""
