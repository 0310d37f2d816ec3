"""Named attacks on a federation: ``moiety attack``.

``attacks.csv`` lists them, ``catalogue.py`` puts each row beside its attempt, and ``docs/attacking.md`` says how to add
one. What parties do otherwise than the protocol says is scripted:

    signed_client       one party's requests to either server, any of which can be spoilt
    forgeries           shares, signatures, lists and updates that are made wrongly
    scripted_requester  a requester and sites in one object, step by step, against two real servers
    scripted_rounds     rounds of two real servers, walked to a phase and finished from there
    scripted_agents     a requester of one's choice against seven real agents

Experiments run whole studies in this process, and compute with what whoever takes part has:

    attacked_study      a case's study as an experiment runs it
    reconstruction      every site's updates, estimated from a finished study's sums and lists
    differencing        two sums that differ by one site, beside what isolation predicted
    distances           updates located by their distances to what a requester and its accomplices know
    inversion           records read out of an opened average
    membership          who was trained on, from models and opened averages
    inference           what is inferred about every contributor: members, and its classes
    poisoning           sites that poison the model, by what they send or train on
    lies                sites that lie about their update to gain weight, over a whole study
    leak                bits that a server reads from who stays in the sum when it falsifies products
    tagged_round        a round with tags in which one party does otherwise
    troubled_study      a study over a network that loses, doubles, holds back, cuts and stalls
"""
