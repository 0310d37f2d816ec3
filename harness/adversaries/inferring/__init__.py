"""What is inferred from what everybody in a study has anyway: who was trained on, and which classes a site has.

membership   whether a record was trained on, from the last model and from opened averages
class_mix    how a site's classes differ from the requester's, from distances and from weight lists
watched_run  a study, run in this process, with what its parties have after every round
lines        what came of it, as lines of JSON
"""
