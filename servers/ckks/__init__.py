"""Ciphertexts, parsed and added in a process of their own."""
