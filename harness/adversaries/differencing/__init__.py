"""Two sums that differ by one site: how far off the difference is from that site's update, and what isolation said.

differenced_run  a study in which one site is away at the second sum
lines            what came of it, as lines of JSON
"""
