"""Named attacks on a federation, as small functions: for the tests, and for whoever wants to try a new one.

    vectors         what a contributor can put into its update: wrap-around, multiples of 2^32, scaling
    contributions   sealed shares that are altered, misdirected or two-faced
    requests        signatures over too little, replays, other people's keys
    requester       announcements, weight lists and release sets of a malicious requester
    reconstruction  every site's updates, estimated from a finished study's sums and lists
    gaining         sites that lie about their update to gain weight, over a whole study
    locating        updates located by their distances to what a requester and its accomplices know

The first four send nothing: they return what is to be sent. The others run studies in this process, and compute with
what whoever takes part has.
"""
