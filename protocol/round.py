"""One whole round in one process: two servers, three contributors, the requester (docs/protocol.md 2 to 10).

Read it from top to bottom, or run it: ``python -m protocol.round`` prints what each party holds after each step.

    site        clip, weight, encode, split          1   contribute
    servers     agree on who counts, toss a coin     2   lock
    requester   secret-share its query               3   ask
    servers     sketch, multiply, re-randomise       4   measure
    requester   open checks and distances, judge     5   judge
    servers     add, mask                            6   release
    sites       open the sum, take the average       7   average
    requester   erode the weights                    8   Weight Erosion

The two servers do not collude; one of them may deviate. Any site may deviate, the requester too. A deviating server can
make a check fail or change a sum within the bounds of step 7. Of an update it learns no more than what the requester
does next tells it: at most two bits a site and round (docs/protocol.md 8, docs/threat_model.md).

    g_i, g_0    update of site i and of the requester, D reals, clipped to length C
    w_i         weight of site i: numerator / grid, handed out by the requester; the requester's own is 1
    f           fraction bits of the fixed-point encoding in Z_2^64
    S           public random linear map Z^D -> Z^k: being linear it works on shares, and a product then costs O(k)
    x_A, x_B    the servers' shares of x = x_A + x_B

Every step calls the function that servers and agents call. Two things that agents add are left out, and said where they
belong. Between machines each message is also signed and sealed to its reader (docs/protocol.md 3, 14), stored before it
is answered, and sent in chunks; here whole vectors are passed on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol import release, sharing
from protocol.arithmetic import fixed_point, ring
from protocol.arithmetic.ring import Ring, Usage, derive, expand
from protocol.channel.commitment import commitment_to
from protocol.channel.keys import generate_sealing_key, generate_signing_key
from protocol.messages.control import AgreedSet, Announcement, CollectedContribution, Role, Roster
from protocol.mpc import measurement
from protocol.mpc.product import ot_pair
from protocol.mpc.sketch import sketch_shares, sketch_vector
from protocol.parameters import Needs, StudyParameters
from protocol.roster.keyfile import PartyKeys
from protocol.rounds import agreement
from protocol.rules.interface import Measured, SiteFacts
from protocol.rules.weight_erosion import WeightErosion
from protocol.sharing import SeedShare, Share, Side

REQUESTER: Final = "hospital-0"
CONTRIBUTORS: Final = ("hospital-1", "hospital-2", "hospital-3")
SITES: Final = (REQUESTER, *CONTRIBUTORS)
PARAMETERS: Final = StudyParameters(dimension=4096, clip_norm=1.0, least_contributors=3)
ROUND: Final = 1
ATTEMPT: Final = 1
EXAMPLE_SEED: Final = bytes(range(32))
"""The seed of this example: real parties draw every seed afresh from the operating system."""

_DIGEST = "0" * 64
"""Stands for the digests of a study, a model and a weight list, which this example does not have."""


@dataclass(frozen=True, eq=False)
class Contribution:
    """One site's encoded update, a share for each server, and the commitments that bind the site to both."""

    encoded: Ring = field(repr=False)
    shares: Mapping[Side, Share] = field(repr=False)
    collected: CollectedContribution


@dataclass(frozen=True, eq=False)
class Transcript:
    """The sites' secrets, most of the messages between the parties, and the results, for the example to print.

    The real vectors: ``updates`` float64[D] by site, ``average`` float32[D]. ``numerators`` are the weights that the
    requester handed out, over the grid; ``next_numerators`` those after erosion.
    """

    updates: Mapping[str, NDArray[np.float64]] = field(repr=False)
    numerators: Mapping[str, int]
    contributions: Mapping[str, Contribution] = field(repr=False)
    agreed: AgreedSet
    challenge: bytes
    queries: Mapping[Side, Mapping[str, Ring]] = field(repr=False)
    sketches: Mapping[Side, Sequence[Ring]] = field(repr=False)
    masked: Mapping[Side, Sequence[Ring]] = field(repr=False)
    openings: Mapping[Side, Sequence[measurement.OpeningShare]] = field(repr=False)
    opened: tuple[measurement.OpenedSite, ...]
    released: tuple[str, ...]
    output: Ring = field(repr=False)
    average: NDArray[np.float32] = field(repr=False)
    next_numerators: Mapping[str, int]


def run_round(seed: bytes) -> Transcript:
    """Run the round; every random draw follows from ``seed`` (32 bytes)."""
    rule = WeightErosion(distance_penalty=0.1, size_penalty=0.2, batch_size=10, grid=PARAMETERS.weight_grid)
    state = rule.init(tuple(SiteFacts(name=name, samples=100) for name in CONTRIBUTORS))
    numerators = {one.site: one.numerator for one in rule.numerators(state)}
    numerators[REQUESTER] = PARAMETERS.weight_grid  # weight 1: the model is made for its patients
    roster, announcement = federation(seed), announce()

    updates = {site: example_update(site, seed) for site in SITES}
    contributions = {
        site: contribute(site, updates[site], numerators[site], roster, announcement, derive(seed, site))
        for site in SITES
    }
    agreed, challenge = lock(contributions, roster, announcement, derive(seed, "nonce a"), derive(seed, "nonce b"))
    queries = ask(challenge, contributions[REQUESTER].encoded, numerators, derive(seed, "queries"))
    sketches, masked, openings = measure(challenge, contributions, queries, seed)
    opened, released = judge(openings, numerators)
    t_seed = derive(seed, "output mask")
    output = release_sum(contributions, released, t_seed)
    average = average_of(output, t_seed, released, numerators)
    measured = Measured(
        round=ROUND,
        distances=tuple((one.site, one.distance) for one in opened if one.distance is not None),
        requester_norm=min(float(np.linalg.norm(updates[REQUESTER])), PARAMETERS.clip_norm),
        took_part=tuple(site for site in released if site != REQUESTER),
    )
    eroded = {one.site: one.numerator for one in rule.numerators(rule.apply(state, measured))}
    return Transcript(
        updates, numerators, contributions, agreed, challenge, queries, sketches, masked, openings, opened, released,
        output, average, eroded,
    )  # fmt: skip


# --- 1 each site ------------------------------------------------------------------------------------------------------


def contribute(
    site: str,
    update: NDArray[np.float64],
    numerator: int,
    roster: Roster,
    announcement: Announcement,
    rand: bytes,
) -> Contribution:
    """Clip, multiply by the weight, encode, split, commit.

    In this order: encoded before it is multiplied, every entry would be a multiple of the weight's numerator. Both
    servers get both commitments; each share's salt and content key travel with it, so its server alone checks it.

    Shapes:   float64[D] -> two shares of uint64[D], ring 2^64, f fraction bits
    Reveals:  a 32-byte seed to one server, a uniform vector to the other
    """
    # One group, "all": the whole update is clipped to C.
    scaling = fixed_point.scaling_of(
        update, (("all", update.size),), PARAMETERS, weight=numerator / PARAMETERS.weight_grid
    )
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
    collected = CollectedContribution(
        site=site,
        announcement_digest=announcement.digest(),
        commitment_a=commitments[Side.A],
        commitment_b=commitments[Side.B],
    )
    return Contribution(encoded, shares, collected)


# --- 2 both servers ---------------------------------------------------------------------------------------------------


def lock(
    contributions: Mapping[str, Contribution],
    roster: Roster,
    announcement: Announcement,
    nonce_a: bytes,
    nonce_b: bytes,
) -> tuple[AgreedSet, bytes]:
    """Agree on the contributions that both servers hold with equal commitments; then toss a coin.

    A sends a commitment to its nonce, B its nonce, A opens (docs/protocol.md 4; here both are simply known). Both
    come after the set: nobody can choose a share, or leave out a site, to suit the challenge. A, which knows it first,
    can stop the attempt; then every share is deleted, and the next attempt has fresh ones and another challenge.

    Reveals:  the challenge, to everybody: S and the check's projections follow from it
    """
    at_a = at_b = [one.collected for one in contributions.values()]
    agreed = agreement.agree(announcement, ATTEMPT, roster, at_a, at_b)
    transcript = agreement.transcript(ROUND, agreed.digest(), nonce_a, nonce_b)
    return agreed, agreement.check_transcript(ROUND, agreed, transcript)


# --- 3 the requester --------------------------------------------------------------------------------------------------


def ask(
    challenge: bytes, own_encoded: Ring, numerators: Mapping[str, int], rand: bytes
) -> Mapping[Side, Mapping[str, Ring]]:
    """Secret-share w_i S g_0 for every contributor i, to be compared with its weighted sketch w_i S g_i.

    Shapes:   -> uint64[k] by contributor, for each server
    Reveals:  nothing: one server holds a seed's stream, the other the rest, uniform by itself
    """
    own_sketch = sketch_vector(challenge, own_encoded, PARAMETERS)
    queries: dict[Side, dict[str, Ring]] = {Side.A: {}, Side.B: {}}
    for site in CONTRIBUTORS:
        query = measurement.distance_query(own_sketch, numerators[site], PARAMETERS.weight_grid)
        seeded = sharing.seed_side(ROUND)
        queries[seeded][site] = expand(derive(rand, site), Usage.QUERY, query.size)
        queries[seeded.other][site] = query - queries[seeded][site]
    return queries


# --- 4 both servers ---------------------------------------------------------------------------------------------------


def measure(
    challenge: bytes,
    contributions: Mapping[str, Contribution],
    queries: Mapping[Side, Mapping[str, Ring]],
    seed: bytes,
) -> tuple[
    Mapping[Side, Sequence[Ring]],
    Mapping[Side, Sequence[Ring]],
    Mapping[Side, Sequence[measurement.OpeningShare]],
]:
    """Sketch every share, multiply by correlations from oblivious transfer, re-randomise the results.

    With z = w_i S g_i - w_i S g_0 = z_A + z_B, the squared distance is |z_A|^2 + |z_B|^2 + 2 <z_A, z_B>: each server
    squares its own share, and only <z_A, z_B> needs both. For <x, y> of A's x and B's y they consume one correlation
    c_A + c_B = <a, b>, random a and c_A at A, b and c_B at B: A sends x - a, B sends y - b, then A holds
    <x, y - b> + c_A and B holds <x - a, b> + c_B. For every site they compute 40 products for its range check, and for
    every contributor one more for its distance.

    The results are shared anew with zeros from a key that both servers made when they opened their session. The
    requester, which knows both shares of its query, then learns the sums and nothing about the sketches.

    Reveals:  to a server a uniform vector; nothing is opened here
    """
    sketches, operands = {}, {}
    for side in Side:
        sources = [sharing.chunk_source(contributions[site].shares[side]) for site in SITES]
        sketches[side] = sketch_shares(challenge, sources, PARAMETERS)
        given = [
            measurement.SiteSketch(site, sketch, queries[side].get(site))
            for site, sketch in zip(SITES, sketches[side], strict=True)
        ]
        operands[side] = measurement.prepare_all(side, challenge, given, PARAMETERS, opens=Needs.DISTANCES)
    lengths = [one.lengths for one in operands[Side.A]]
    halves = dict(zip(Side, ot_pair(lengths, derive(seed, "ot a"), derive(seed, "ot b")), strict=True))
    masked = {  # x - a, y - b
        side: [measurement.masked(own, half) for own, half in zip(operands[side], halves[side], strict=True)]
        for side in Side
    }
    zero_key, context = derive(seed, "zero sharing"), f"example, round {ROUND}, attempt {ATTEMPT}"
    openings = {
        side: [
            measurement.opening_share(side, own, theirs, half, zero_key, context, PARAMETERS)
            for own, theirs, half in zip(operands[side], masked[side.other], halves[side], strict=True)
        ]
        for side in Side
    }
    return sketches, masked, openings


# --- 5 the requester --------------------------------------------------------------------------------------------------


def judge(
    openings: Mapping[Side, Sequence[measurement.OpeningShare]], numerators: Mapping[str, int]
) -> tuple[tuple[measurement.OpenedSite, ...], tuple[str, ...]]:
    """Add both servers' shares: who is in range, and how far its update is from the requester's.

    An agent also leaves out a site that is farther away than a clipped update can be, one that its rule does not select
    (``protocol/rounds/judgement.py``), and skips a round with too few contributors. The requester names
    one release set a round: servers refuse a second one, and one below the number that it announced.

    Reveals:  to the requester, of an honest contributor one distance; of an update out of range also about how large
              its 40 projections are, and its distance, which an agent does not add up
    """
    opened = measurement.open_all(openings[Side.A], openings[Side.B], numerators, PARAMETERS, opens=Needs.DISTANCES)
    return opened, tuple(one.site for one in opened if one.in_range)


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
    output: Ring, t_seed: bytes, released: Sequence[str], numerators: Mapping[str, int]
) -> NDArray[np.float32]:
    """Open the sum, refuse it where it is longer than clipped updates can make it, divide by the sum of weights.

    A deviating site can still make everybody refuse the round, up to the distance that step 5 lets pass.

    Shapes:   uint64[D], ring 2^64 -> float32[D]
    Reveals:  the weighted average, to every site
    """
    total = sum(numerators[site] for site in released)
    opener = release.AverageOpener(
        t_seed,
        release.coordinate_bound(PARAMETERS, total, len(released), measured=True),
        release.longest_sum(PARAMETERS, total, len(released)),
        total / PARAMETERS.weight_grid,
        PARAMETERS,
    )
    average = np.empty(PARAMETERS.dimension, dtype=np.float32)
    opener.open_into(average, output, 0)
    opener.finish()
    return average


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
        sites=tuple(keys(name, Role.SITE).party(samples=100) for name in SITES),
    )


def announce() -> Announcement:
    """The requester's announcement: which contributors are listed, and what will be revealed about them.

    The requester itself takes part in every round.
    """
    return Announcement(
        study_digest=_DIGEST,
        round=ROUND,
        listed=CONTRIBUTORS,
        least_contributors=PARAMETERS.least_contributors,
        opens=Needs.DISTANCES,
        model_version=0,
        model_digest=_DIGEST,
        weight_list_digest=_DIGEST,
        closes_at_s=0,
    )


def main() -> None:
    """Print what each party holds at each step of the round of EXAMPLE_SEED."""
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
        for site, sketch, sent in zip(SITES, t.sketches[side], t.masked[side], strict=True):
            query = _first(t.queries[side][site]) if site in t.queries[side] else "none"
            print(f"  {side.upper()} {site}  {query:20}  {_first(sketch)}  {_first(sent)}")
    print("\n5 The requester: range check, and the distance from its own update (exact, for comparison)")
    for opened in t.opened:
        exact = float(np.linalg.norm(t.updates[opened.site] - t.updates[REQUESTER]))
        distance_ = "" if opened.distance is None else f"{opened.distance:.4f} ({exact:.4f})"
        print(f"  {opened.site}  {'in range' if opened.in_range else 'failed'}  {distance_}".rstrip())
    print(f"\n6 One server gives every site the masked sum {_first(t.output)}, the other one the mask's seed")
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
