"""Sites that poison the model: what they send or train on, and what it does to the requester's model by rule.

poisons      what a poisoner writes instead of its update
tampered     what it trains on instead of its data
poisoned_sum a round in which some sites poison, for any way of summing
poisoned_run a study with poisoners under every rule, and the same one without
lines        what came of it, as a line of JSON
"""
