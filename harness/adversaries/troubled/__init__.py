"""Whole studies over a network that loses, doubles, holds back, cuts and stalls what passes, and what they come to."""
