"""Named attacks on a federation: ``moiety attack``.

``attacks.csv`` lists them, ``catalogue.py`` puts each row beside its attempt, and ``docs/attacking.md`` says how to add
one. What parties do otherwise than the protocol says is scripted:

    signed_client       one party's requests to either server, any of which can be spoilt
    forgeries           shares, signatures, lists and updates that are made wrongly
    scripted_requester  a requester and sites in one object, step by step, against two real servers
    scripted_rounds     rounds of two real servers, walked to a phase and finished from there
    scripted_agents     a requester of one's choice against seven real agents

The packages beside them run whole studies in this process, and compute with what whoever takes part has.
"""
