"""The protocol once more in slow Python integers, written from docs/protocol.md alone.

It imports nothing of the project and no numpy, so that a mistake has to be made twice to go unseen.
Ring elements are ints in [0, 2^64); vectors are lists of them.
"""
