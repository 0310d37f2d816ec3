"""Inputs that nobody means: into every decoder, and into running servers, with counts (``make soak``)."""
