"""Named attacks on a federation: a catalogue of them, and experiments over whole studies in this process.

    vectors         what a contributor can put into its update: wrap-around, multiples of 2^32, scaling
    contributions   sealed shares that are altered, misdirected or two-faced
    requests        signatures over too little, replays, other people's keys
    requester       announcements, weight lists and release sets of a malicious requester
    attacked_study  a case's study as an experiment runs it
    reconstruction  every site's updates, estimated from a finished study's sums and lists
    differencing    two sums that differ by one site, beside what isolation predicted
    distances       updates located by their distances to what a requester and its accomplices know
    inversion       records read out of an opened average
    membership      who was trained on, from models and opened averages
    inference       what is inferred about every contributor: members, and its classes
    poisoning       sites that poison the model, by what they send or train on
    lies            sites that lie about their update to gain weight, over a whole study
    leak            bits that a server reads from who stays in the sum when it falsifies products
    tagged_round    a round with tags in which one party does otherwise
    troubled_study  a study over a network that loses, doubles, holds back, cuts and stalls

The first four send nothing: they return what is to be sent.
"""
