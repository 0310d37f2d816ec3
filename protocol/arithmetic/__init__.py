"""Arithmetic modulo 2^64, fixed point and the seed expansion everything else is built from."""
