"""Named attacks on a federation, as small functions: for the tests, and for whoever wants to try a new one.

    vectors         what a contributor can put into its update: wrap-around, multiples of 2^32, scaling
    contributions   sealed shares that are altered, misdirected or two-faced
    requests        signatures over too little, replays, other people's keys
    requester       announcements, weight lists and release sets of a malicious requester
    reconstruction  every site's updates, estimated from a finished study's sums and lists

The first four send nothing: they return what is to be sent. The last one sends nothing at all: it computes with what
everybody who takes part has.
"""
