"""Records read out of an opened average: what its gradients say about the examples behind it.

targets      data sets as an attacker meets them: pools of records, first models, and how alike two records are
analytic     the first dense layer's rows over its biases: exact wherever a row has one record
optimised    records whose gradients come nearest to the average
matching     how many true records an attack's candidates hit, beside guessing
inverted_run an average of some sites' gradients, attacked
lines        what came of it, as lines of JSON
"""
