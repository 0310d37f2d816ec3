"""Named attacks on a federation, as small functions: for the tests, and for whoever wants to try a new one.

    vectors         what a contributor can put into its update: wrap-around, multiples of 2^32, scaling
    contributions   sealed shares that are altered, misdirected or two-faced
    requests        signatures over too little, replays, other people's keys
    requester       announcements, weight lists and release sets of a malicious requester
    reconstruction  every site's updates, estimated from a finished study's sums and lists
    inferring       who was trained on, and which classes a site has, from models, averages, distances and weights
    inverting       records read out of an opened average
    differencing    two sums that differ by one site, beside what isolation predicted
    poisoning       sites that poison the model, by what they send or train on
    gaining         sites that lie about their update to gain weight, over a whole study
    locating        updates located by their distances to what a requester and its accomplices know

The first four send nothing: they return what is to be sent. The others run studies in this process, and compute with
what whoever takes part has.
"""
