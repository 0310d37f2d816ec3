"""What is inferred from what everybody in a study has anyway: who was trained on, and which classes a site has.

membership     whether a record was trained on, from the last model and from opened averages
shadows        the same, from a record's confidence under models that were and were not trained on it
class_mix      how a site's classes differ from the requester's, from distances and from weight lists
watched_run    a study, run in this process, with what its parties have after every round
watched_models the models and averages of a study's rounds
memorised_run  a study over a random half of every hospital's patients, and who of all of them was in it
lines, memorised_lines  what came of them, as lines of JSON
"""
