"""A party's audit log: a file that is only added to, each line chained to the one before by its hash.

Nothing confidential is in it: names of studies and of people who gave a word, rounds, digests, counts of bytes.
"""
