"""One whole round in one process: two servers, three contributors, the requester (docs/protocol.md 2 to 10).

Read it from top to bottom, or run it: ``python -m protocol.round`` prints most of what each party holds at each step.

    step  function      who         what                                       section of docs/protocol.md
    1     contribute    site        clip, weight, encode, split                (sections 2, 3)
    2     lock          servers     agree on who counts, toss a coin           (section 4)
    3     ask           requester   secret-share its query                     (section 8)
    4     measure       servers     sketch, multiply, re-randomise             (sections 5 to 8)
    5     judge         requester   open checks and distances, judge           (sections 6, 8)
    6     release_sum   servers     add, mask                                  (section 9)
    7     average_of    sites       open the sum, take the average             (section 9)
    8     erode         requester   erode the weights                          (section 10)

The two servers do not collude; one of them may deviate. Any site may deviate, the requester too. A deviating server can
make a check fail; add any constant to its share of a distance, which changes the next weights or stops the round; or
change the sum within the bound of step 7. With a site's help, which knows both its shares and so the opened check
values, it can make that site's check pass. Of an update it learns, from what the requester does next, at most two bits
a site and round: whether the site is in the sum, and whether it is on the next list; besides whether round and study
go on (section 8, docs/threat_model.md).

    g_i, g_0    update of site i and of the requester, D reals, clipped to length C
    w_i         weight of site i: numerator / grid, handed out by the requester; the requester's own is 1
    f           fraction bits of the fixed-point encoding in Z_2^64
    S           public random linear map Z^D -> Z^k: being linear it works on shares, and a product then costs O(k)
    k           2048, below D: ||Sx||^2 / 4 estimates ||x||^2, a distance to 1 / sqrt(2 k) = 1.6 % (standard deviation)
    x_A, x_B    the servers' shares of x = x_A + x_B

Steps call the functions that servers and agents call; written out here are a query's two shares, the requester's
clipped norm and the release set. Left out are signatures, sealing, receipts, chunks and storage (sections 3, 14), the
check of each share against its commitment, the messages of the coin toss, the policy of sites and their check of the
evidence for a release (section 9), the servers' check of the release set, and tags (section 15).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol import release, sharing
from protocol.arithmetic import fixed_point, ring
from protocol.arithmetic.ring import Ring, Usage, derive, expand
from protocol.channel.commitment import commitment_to
from protocol.channel.keys import generate_sealing_key, generate_signing_key
from protocol.errors import ProtocolViolation
from protocol.messages.control import AgreedSet, Announcement, CollectedContribution, Role, Roster
from protocol.messages.specifications import RuleName, RuleSpec
from protocol.mpc import measurement
from protocol.mpc.product import ot_pair
from protocol.mpc.sketch import sketch_shares, sketch_vector
from protocol.parameters import StudyParameters
from protocol.roster.keyfile import PartyKeys
from protocol.rounds import agreement, judgement
from protocol.rounds.judgement import RequesterFacts, RoundRule
from protocol.rules.interface import Measured, SiteFacts
from protocol.rules.registry import rule_for
from protocol.sharing import SeedShare, Share, Side

REQUESTER: Final = "hospital-0"
CONTRIBUTORS: Final = ("hospital-1", "hospital-2", "hospital-3")
SITES: Final = (REQUESTER, *CONTRIBUTORS)
PARAMETERS: Final = StudyParameters(dimension=4096, clip_norm=1.0, least_contributors=3)
RULE: Final = RuleSpec(name=RuleName.WEIGHT_EROSION, distance_penalty=0.1)
ROUND: Final = 1
ATTEMPT: Final = 1
EXAMPLE_SEED: Final = bytes(range(32))
"""The seed of this example: real parties draw every seed afresh from the operating system."""

_SAMPLES: Final = 100
_DIGEST: Final = "0" * 64
"""Stands for the digests of a study, a model and a weight list, which this example does not have."""

Vectors: TypeAlias = Mapping[Side, Sequence[Ring]]
"""At each server one vector an agreed site, in their order."""
Queries: TypeAlias = Mapping[Side, Mapping[str, Ring]]
Openings: TypeAlias = Mapping[Side, Sequence[measurement.OpeningShare]]


@dataclass(frozen=True, eq=False)
class Contribution:
    """One site's encoded update; for each server its share, and the two commitments that it receives."""

    encoded: Ring = field(repr=False)
    shares: Mapping[Side, Share] = field(repr=False)
    collected: Mapping[Side, CollectedContribution]


@dataclass(frozen=True, eq=False)
class Transcript:
    """The sites' secrets, most of the messages between the parties, and the results, for the example to print.

    It is not the signed transcript of the coin toss (``agreement.transcript``).

    The real vectors: ``updates`` float64[D] by site, ``average`` float32[D]. ``numerators`` are the weights that the
    requester handed out, over the grid; ``next_numerators`` those after erosion.
    """

    updates: Mapping[str, NDArray[np.float64]] = field(repr=False)
    numerators: Mapping[str, int]
    contributions: Mapping[str, Contribution] = field(repr=False)
    agreed: AgreedSet
    challenge: bytes
    queries: Queries = field(repr=False)
    sketches: Vectors = field(repr=False)
    masked_factors: Vectors = field(repr=False)
    opened: tuple[measurement.OpenedSite, ...]
    released: tuple[str, ...]
    masked_sum: Ring = field(repr=False)
    average: NDArray[np.float32] = field(repr=False)
    next_numerators: Mapping[str, int]


def run_round(seed: bytes) -> Transcript:
    """Run the round; every random draw follows from ``seed`` (32 bytes)."""
    roster, announcement, rule = federation(seed), announce(), first_rule()
    numerators = {one.site: one.numerator for one in rule.rule.numerators(rule.state)}
    numerators[REQUESTER] = PARAMETERS.weight_grid  # weight 1: the model is made for its patients

    updates = {site: example_update(site, seed) for site in SITES}
    contributions = {
        site: contribute(site, updates[site], numerators[site], roster, announcement, derive(seed, site))
        for site in SITES
    }
    agreed, challenge = lock(contributions, roster, announcement, derive(seed, "nonce a"), derive(seed, "nonce b"))
    queries = ask(challenge, agreed, contributions[REQUESTER].encoded, numerators, derive(seed, "queries"))
    sketches, masked_factors, openings = measure(challenge, agreed, contributions, queries, seed)
    own_norm = min(float(np.linalg.norm(updates[REQUESTER])), PARAMETERS.clip_norm)
    opened, measured = judge(openings, own_norm, numerators, rule, announcement.least_contributors)
    released = tuple(site for site in agreed.sites if site in (REQUESTER, *measured.took_part))
    t_seed = derive(seed, "output mask")
    masked_sum = release_sum(contributions, released, t_seed)
    average = average_of(masked_sum, t_seed, released, numerators)
    return Transcript(
        updates, numerators, contributions, agreed, challenge, queries, sketches, masked_factors, opened, released,
        masked_sum, average, erode(rule, measured),
    )  # fmt: skip


# --- 1 each site ------------------------------------------------------------------------------------------------------


def contribute(
    site: str, update: NDArray[np.float64], numerator: int, roster: Roster, announcement: Announcement, rand: bytes
) -> Contribution:
    """Clip, multiply by the weight, encode, split, commit.

    ``commitment_to`` encrypts a share under its content key and commits to key and ciphertext. Between machines that
    ciphertext is the message, and its server, which gets salt and key with it, checks the commitment. Here the server
    gets the share itself, and nothing is checked. Both servers get both commitments.

    Shapes:   float64[D] -> a 32-byte seed for one server, uint64[D] for the other, ring 2^64, f fraction bits
    Reveals:  a 32-byte seed to one server, a uniform vector to the other
    """
    groups = (("all", update.size),)  # the whole update is clipped to C
    scaling = fixed_point.scaling_of(update, groups, PARAMETERS, weight=numerator / PARAMETERS.weight_grid)
    encoded = np.empty(update.size, dtype=np.uint64)
    fixed_point.encode_into(encoded, update, scaling, derive(rand, "rounding"), 0)
    seed_share, vector_share = sharing.split(encoded, derive(rand, "share"))
    vector_side = sharing.vector_side(roster.place(site))
    shares: dict[Side, Share] = {vector_side: vector_share, vector_side.other: seed_share}
    content = {vector_side: ring.to_bytes(vector_share.vector), vector_side.other: seed_share.seed}
    commitments = {
        side: commitment_to(content[side], derive(rand, f"salt {side}"), derive(rand, f"content key {side}")).hex()
        for side in Side
    }
    bound_to, a, b = announcement.digest(), commitments[Side.A], commitments[Side.B]
    collected = CollectedContribution(site=site, announcement_digest=bound_to, commitment_a=a, commitment_b=b)
    return Contribution(encoded, shares, dict.fromkeys(Side, collected))


# --- 2 both servers ---------------------------------------------------------------------------------------------------


def lock(
    contributions: Mapping[str, Contribution],
    roster: Roster,
    announcement: Announcement,
    nonce_a: bytes,
    nonce_b: bytes,
) -> tuple[AgreedSet, bytes]:
    """Agree on the contributions for which both servers hold the same pair of commitments; then toss a coin.

    A sends a commitment to its nonce, B its nonce, A opens; the exchange is left out. Both nonces come after the set:
    nobody can choose a share, or leave out a site, to suit the challenge. A, which knows it first, can stop the
    attempt; then every share is deleted, and the next attempt has fresh ones and another challenge.

    Reveals:  the challenge, to everybody: S and the check's projections follow from it
    Raises:   ProtocolViolation, when the round must be skipped: too few contributors, or no requester
    """
    at_a, at_b = ([one.collected[side] for one in contributions.values()] for side in Side)
    agreed = agreement.agree(announcement, ATTEMPT, roster, at_a, at_b)
    lacking = agreement.shortfall(agreed, announcement, REQUESTER)
    if lacking is not None:
        raise ProtocolViolation(f"the round is skipped: {lacking.reason}")
    transcript = agreement.transcript(ROUND, agreed.digest(), nonce_a, nonce_b)
    return agreed, agreement.check_transcript(ROUND, agreed, transcript)


# --- 3 the requester --------------------------------------------------------------------------------------------------


def ask(challenge: bytes, agreed: AgreedSet, own_encoded: Ring, numerators: Mapping[str, int], rand: bytes) -> Queries:
    """Secret-share w_i S g_0 for every agreed contributor i.

    Site i's sketch is of w_i g_i, and servers do not know w_i: so the requester scales its own sketch by w_i, and
    step 5 divides by w_i.

    Shapes:   -> uint64[k] by contributor, for each server
    Reveals:  nothing: one server holds a seed's stream, the other the rest, uniform by itself
    """
    own_sketch = sketch_vector(challenge, own_encoded, PARAMETERS)
    queries: dict[Side, dict[str, Ring]] = {Side.A: {}, Side.B: {}}
    seeded = sharing.round_seed_side(ROUND)
    for site in (one for one in agreed.sites if one != REQUESTER):
        query = measurement.distance_query(own_sketch, numerators[site], PARAMETERS.weight_grid)
        queries[seeded][site] = expand(derive(rand, site), Usage.QUERY, query.size)
        queries[seeded.other][site] = query - queries[seeded][site]
    return queries


# --- 4 both servers ---------------------------------------------------------------------------------------------------


def measure(
    challenge: bytes, agreed: AgreedSet, contributions: Mapping[str, Contribution], queries: Queries, seed: bytes
) -> tuple[Vectors, Vectors, Openings]:
    """Sketch every share, multiply by correlations from oblivious transfer, re-randomise the results.

    d = w_i S g_i - w_i S g_0 is shared as d_A + d_B. Each server squares its own share; the rest of d's square is twice
    the product <d_A, d_B> (``protocol/mpc/measurement.py``). For <x, y> of A's x and B's y they consume one correlation
    c_A + c_B = <a, b>, random a and c_A at A, b and c_B at B: A sends x - a, B sends y - b, then A holds
    <x, y - b> + c_A and B holds <x - a, b> + c_B. For every site they compute 40 products for its range check, and for
    every contributor one more for its distance.

    The results are shared anew with zeros from a key that both servers made when they opened their session. The
    requester, which knows both shares of its query, then learns the opened values and nothing else of the sketches.

    Reveals:  to a server a uniform vector; nothing is opened here
    """
    sketches, operands = {}, {}
    for side in Side:
        sources = [sharing.chunk_source(contributions[site].shares[side]) for site in agreed.sites]
        sketches[side] = sketch_shares(challenge, sources, PARAMETERS)
        given = [
            measurement.SiteSketch(site, sketch, queries[side].get(site))
            for site, sketch in zip(agreed.sites, sketches[side], strict=True)
        ]
        operands[side] = measurement.prepare_all(side, challenge, given, PARAMETERS)
    lengths = [one.lengths for one in operands[Side.A]]
    halves = dict(zip(Side, ot_pair(lengths, derive(seed, "ot a"), derive(seed, "ot b")), strict=True))
    masked_factors = {  # x - a, y - b
        side: [measurement.masked(own, half) for own, half in zip(operands[side], halves[side], strict=True)]
        for side in Side
    }
    zero_key, context = derive(seed, "zero sharing"), f"example, round {ROUND}, attempt {ATTEMPT}"
    openings = {
        side: [
            measurement.opening_share(side, own, theirs, half, zero_key, context, PARAMETERS)
            for own, theirs, half in zip(operands[side], masked_factors[side.other], halves[side], strict=True)
        ]
        for side in Side
    }
    return sketches, masked_factors, openings


# --- 5 the requester --------------------------------------------------------------------------------------------------


def judge(
    openings: Openings, own_norm: float, numerators: Mapping[str, int], rule: RoundRule, least_contributors: int
) -> tuple[tuple[measurement.OpenedSite, ...], Measured]:
    """Add both servers' shares; release who is in range and no farther away than a clipped update can be.

    The requester names one release set a round, with itself in it: servers refuse a second one, one without it, and
    one with fewer contributors than it announced. So it names none where its own update fails, or too few pass.

    Reveals:  to the requester, of every site the range check's result. Of an honest contributor besides its distance
              from the point asked about: g_0 if the requester is honest; it may be any, another one for each site.
              Of an update out of range also about how large its 40 projections are; the requester could also open
              its distance, but ``open_all`` does not
    Raises:   ProtocolViolation, when there is nothing to release, or a distance is impossible: then a server deviated
    """
    opened = measurement.open_all(openings[Side.A], openings[Side.B], numerators, PARAMETERS)
    facts = RequesterFacts(REQUESTER, own_norm)
    judged = judgement.judge(opened, facts, numerators, rule, round=ROUND, opens=RULE.needs)
    if not judged.releases(least_contributors):
        raise ProtocolViolation(f"nothing is released: failed checks are {', '.join(judged.failed)}")
    return opened, judged.measured


# --- 6 both servers ---------------------------------------------------------------------------------------------------


def release_sum(contributions: Mapping[str, Contribution], released: Sequence[str], t_seed: bytes) -> Ring:
    """Add the released shares. One side takes PRG(t) off its sum; the other adds its own sum to that and serves it.

    Sides alternate by round. The masking side serves the seed t, and must not see the vector, which travels sealed.

    Shapes:   -> uint64[D], ring 2^64
    Reveals:  nothing to either server: the masking side sees its own sum alone, the other one a uniform vector
    """
    sums = {
        side: release.sum_chunk(
            [sharing.chunk_source(contributions[site].shares[side]) for site in released], 0, PARAMETERS.dimension
        )
        for side in Side
    }
    masking = release.masking_side(ROUND)
    return release.combine_chunk(release.masked_sum_chunk(sums[masking], t_seed, 0), sums[masking.other])


# --- 7 each site ------------------------------------------------------------------------------------------------------


def average_of(
    masked_sum: Ring, t_seed: bytes, released: Sequence[str], numerators: Mapping[str, int]
) -> NDArray[np.float32]:
    """Open the sum, refuse a sum longer than clipped updates can make it, divide by the sum of weights.

    A site whose overlong update passes step 5 can push the sum over the bound: then everybody refuses it.

    Shapes:   uint64[D], ring 2^64 -> float32[D]
    Reveals:  the weighted average, to every site
    Raises:   AggregateOutOfBounds, when the sum is too long
    """
    total = sum(numerators[site] for site in released)
    longest = release.longest_sum(PARAMETERS, total, len(released))
    opener = release.AverageOpener(t_seed, longest, total / PARAMETERS.weight_grid, PARAMETERS)
    average = np.empty(PARAMETERS.dimension, dtype=np.float32)
    opener.open_into(average, masked_sum, 0)
    opener.finish()
    return average


# --- 8 the requester --------------------------------------------------------------------------------------------------


def erode(rule: RoundRule, measured: Measured) -> Mapping[str, int]:
    """Take from every released contributor's weight in proportion to its distance (docs/protocol.md 10).

    Reveals:  to every listed site the next weights, over the grid; a site that has none left is not listed
    """
    return {one.site: one.numerator for one in rule.rule.numerators(rule.rule.apply(rule.state, measured))}


# --- the example ------------------------------------------------------------------------------------------------------


def example_update(site: str, seed: bytes) -> NDArray[np.float64]:
    """An update of norm 1/2: the common direction with some noise, or, at hospital-3, another direction."""
    common, own = (
        ring.to_signed(expand(derive(seed, f"update of {name}"), Usage.SEEDED, PARAMETERS.dimension)) / 2.0**63
        for name in ("everybody", site)
    )
    update = own if site == CONTRIBUTORS[-1] else common + own / 4
    return np.asarray(update / (2 * np.linalg.norm(update)))


def federation(seed: bytes) -> Roster:
    """The parties and their public keys."""

    def keys(name: str, role: Role) -> PartyKeys:
        stream = b"".join(derive(seed, f"key {part} of {name}") for part in range(4))
        return PartyKeys(name, role, generate_signing_key(stream[:32]), generate_sealing_key(stream[32:]))

    return Roster(
        federation="example",
        operator_a=keys("operator-a", Role.OPERATOR).party(url="https://a.example"),
        operator_b=keys("operator-b", Role.OPERATOR).party(url="https://b.example"),
        requester=REQUESTER,
        sites=tuple(keys(name, Role.SITE).party(samples=_SAMPLES) for name in SITES),
    )


def first_rule() -> RoundRule:
    """The rule before its first round, in which neither its batch size nor the sites' numbers of samples count."""
    made = rule_for(RULE, batch_size=1, grid=PARAMETERS.weight_grid)
    facts = tuple(SiteFacts(name=name, samples=_SAMPLES) for name in CONTRIBUTORS)
    return RoundRule(RULE, made, made.init(facts), PARAMETERS)


def announce() -> Announcement:
    """The requester's announcement: which contributors are listed, and what will be revealed about them.

    The requester itself takes part in every round.
    """
    return Announcement(
        study_digest=_DIGEST,
        round=ROUND,
        listed=CONTRIBUTORS,
        least_contributors=PARAMETERS.least_contributors,
        opens=RULE.needs,
        model_version=0,
        model_digest=_DIGEST,
        weight_list_digest=_DIGEST,
        closes_at_s=0,
    )


def main() -> None:
    """Print the round of EXAMPLE_SEED, without commitments, opening shares and the mask's seed."""
    t = run_round(EXAMPLE_SEED)
    print(f"One round of {len(SITES)} sites and {PARAMETERS.dimension} parameters. All seeds are for this example.")
    print("\n1 Each site: its update and encoded update (first two elements), what each server gets of it")
    for site, one in t.contributions.items():
        update, encoded = t.updates[site][:2].tolist(), ring.to_signed(one.encoded[:2]).tolist()
        print(f"  {site}  [{update[0]:+.4f} {update[1]:+.4f} ...]  {encoded}")
        for side in Side:
            share = one.shares[side]
            held = f"seed {share.seed.hex()}" if isinstance(share, SeedShare) else f"vector {_first(share.vector)}"
            print(f"    {side.upper()}  {held}")
    print(f"\n2 Both servers: {len(t.agreed.sites)} sites agreed, challenge {t.challenge.hex()}")
    print("\n3 and 4 Each server: its shares of query and sketch, and the masked factors that it sends to the other")
    print(f"  {'':12}  {'query':20}  {'sketch':20}  masked factors")
    for side in Side:
        for site, sketch, sent in zip(t.agreed.sites, t.sketches[side], t.masked_factors[side], strict=True):
            query = _first(t.queries[side][site]) if site in t.queries[side] else "none"
            print(f"  {side.upper()} {site}  {query:20}  {_first(sketch)}  {_first(sent)}")
    print("\n5 The requester: range check, and the distance from its own update: estimate (exact)")
    for opened in t.opened:
        exact = float(np.linalg.norm(t.updates[opened.site] - t.updates[REQUESTER]))
        distance_ = "" if opened.distance is None else f"{opened.distance:.4f} ({exact:.4f})"
        print(f"  {opened.site}  {'in range' if opened.in_range else 'failed'}  {distance_}".rstrip())
    print(f"\n6 One server gives every site the masked sum {_first(t.masked_sum)}, the other one the mask's seed")
    weights = np.array([t.numerators[site] for site in t.released])
    plain = weights @ np.array([t.updates[site] for site in t.released]) / weights.sum()
    off = float(np.max(np.abs(plain - t.average)))
    print(f"\n7 Every site: the average, within {off:.0e} of the plain one")
    print(f"\n8 The requester: weights over {PARAMETERS.weight_grid} before and after Weight Erosion")
    for site in CONTRIBUTORS:
        print(f"  {site}  {t.numerators[site]} -> {t.next_numerators.get(site, 0)}")


def _first(vector: Ring) -> str:
    return f"[{int(vector[0]):016x} ..]"


if __name__ == "__main__":
    main()
