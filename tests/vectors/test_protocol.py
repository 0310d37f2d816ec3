"""protocol/ against the committed vectors, bit for bit."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from protocol import release, sharing
from protocol.arithmetic import fixed_point, ring
from protocol.channel.commitment import MessageDigest, check_commitment, message_digest
from protocol.channel.sealing import encrypt_body
from protocol.errors import (
    AggregateOutOfBounds,
    CommitmentMismatch,
    ConsistencyCheckFailed,
    MalformedMessage,
    PolicyRefusal,
    ProtocolViolation,
    UnusableUpdate,
)
from protocol.mpc import measurement, product, sketch
from protocol.mpc.measurement import distance_factor
from protocol.mpc.product import dealer_corrections, dealer_half_a, dealer_half_b
from protocol.ot import extension
from protocol.ot import kernels as ot_kernels
from protocol.ot.gilboa import RowHash
from protocol.parameters import StudyParameters
from protocol.policy.clauses import check_enough_contributors, check_largest_share
from protocol.policy.site_policy import SitePolicy
from protocol.rounds.agreement import nonce_commitment, transcript
from protocol.rules.interface import Measured, RuleState, SiteFacts, SiteStanding
from protocol.rules.weight_erosion import WeightErosion
from protocol.sharing import Side
from tests.chunks import chunks_of, reconstruct
from tests.unit.policy.lists import announcement, weight_list
from tests.vectors import build_measurement, build_transfer
from tests.vectors.material import LOG2_E, honest, load


def parameters(
    dimension: int, *, log2_e: int = LOG2_E, fraction_bits: int | None = None, grid: int = 32, k: int = 2048
):
    return StudyParameters(
        dimension=dimension,
        clip_norm=1.0 if fraction_bits is None else 2.0 ** (log2_e - fraction_bits),
        encoded_norm_log2=log2_e,
        weight_grid=grid,
        sketch_length=k,
        least_contributors=3,
    )


def vector(items) -> np.ndarray:
    return np.array([int(item, 16) if isinstance(item, str) else item for item in items], dtype=np.uint64)


def hexes(x) -> list[str]:
    return [f"{int(v):016x}" for v in x]


def sha256(x) -> str:
    return hashlib.sha256(ring.to_bytes(x)).hexdigest()


def shares_of(x, key: bytes):
    """Chunk sources of the seed share (server A) and the vector share (server B)."""
    return [sharing.chunk_source(share) for share in sharing.split(x, key)]


# --- streams, numbers, shares ------------------------------------------------------------------------------------


def test_streams():
    vectors = load("prg")
    assert {case["usage"] for case in vectors["expand"]} == {usage.name for usage in ring.Usage}
    for case in vectors["expand"]:
        seed, usage = bytes.fromhex(case["seed"]), ring.Usage[case["usage"]]
        found = ring.expand(seed, usage, case["length"], start=case["start"])
        assert hexes(found) == case["elements"]
        raw = ring.expand_bytes(seed, usage, 8 * case["length"], start=8 * case["start"])
        assert raw == ring.to_bytes(found)
    for case in vectors["derive"]:
        assert ring.derive(bytes.fromhex(case["seed"]), case["label"]).hex() == case["key"]
    for bad in vectors["bad_seeds"]:
        with pytest.raises(MalformedMessage):
            ring.expand(bytes.fromhex(bad), ring.Usage.SHARE, 1)


def test_fixed_point():
    vectors = load("fixed_point")
    for case in vectors["encode"]:
        study = parameters(len(case["values"]), fraction_bits=case["fraction_bits"])
        values, seed = np.array(case["values"]), bytes.fromhex(case["seed"])
        encoded = fixed_point.encode(values, study, seed, start=case["start"])
        assert hexes(encoded) == case["ring"]
        assert fixed_point.decode(encoded, study).tolist() == case["decoded"]
    for case in vectors["grid"]:
        assert fixed_point.quantise_weight(case["alpha"], case["grid"]) == case["numerator"]
    for case in vectors["clip"]:
        clipped, was_clipped = fixed_point.clip(np.array(case["values"]), case["clip_norm"])
        assert was_clipped is case["clipped"]
        assert was_clipped or clipped.tolist() == case["values"]


def test_unusable_numbers():
    vectors = load("fixed_point")
    for alpha in vectors["bad_alphas"]:
        with pytest.raises(ProtocolViolation):
            fixed_point.quantise_weight(alpha, 32)
    for text in vectors["bad_values"]:
        update = np.array([0.0, 0.0, float(text)], dtype=np.float32)
        with pytest.raises(UnusableUpdate, match="second"):
            fixed_point.check_finite(update, [("first", 2), ("second", 1)])
        with pytest.raises(UnusableUpdate):
            fixed_point.encode(update, parameters(3), bytes(32))


def test_sharing_and_commitments():
    vectors = load("sharing")
    for case in vectors["split"]:
        x, seed = vector(case["x"]), bytes.fromhex(case["seed"])
        seed_share, vector_share = sharing.split(x, seed)
        assert hexes(vector_share.vector) == case["vector"]
        assert hexes(reconstruct(seed_share, vector_share)) == case["x"]
        for share, name in ((seed, "seed"), (ring.to_bytes(vector_share.vector), "vector")):
            check_share(case, share, case[f"commitment_of_{name}"])
    for bad in vectors["bad_commitments"]:
        with pytest.raises(CommitmentMismatch):
            check_share(bad, bytes.fromhex(bad["share"]), bad["commitment"])


def check_share(case: dict[str, str], share: bytes, committed: str) -> None:
    salt, content_key = bytes.fromhex(case["salt"]), bytes.fromhex(case["content_key"])
    body_hash = hashlib.sha256(b"".join(encrypt_body(content_key, [share]))).digest()
    check_commitment(bytes.fromhex(committed), salt, content_key, body_hash)


def test_digests_of_sealed_messages():
    for case in load("sharing")["digests"]:
        head, body = bytes.fromhex(case["head"]), bytes.fromhex(case["body"])
        assert message_digest(head, hashlib.sha256(body).digest()).hex() == case["digest"]
        streamed = MessageDigest()
        streamed.update(head + body)
        assert streamed.digest().hex() == case["digest"]


# --- sketch, range check, products, distances --------------------------------------------------------------------


def test_sketches():
    vectors = load("sketch")
    for case in vectors["sketch"]:
        study = parameters(case["dimension"], k=case["sketch_length"])
        x = ring.expand(bytes.fromhex(case["input_seed"]), ring.Usage.SEEDED, case["dimension"])
        challenge = bytes.fromhex(case["challenge"])
        found = sketch.sketch_vector(challenge, x, study)
        assert (found.size, sha256(found), hexes(found[:4])) == (case["length"], case["sha256"], case["first"])
        for chunk in (64, 1000):
            (again,) = sketch.sketch_shares(challenge, [chunks_of(x)], study, chunk=chunk)
            assert np.array_equal(again, found)


def test_projections():
    for case in load("range_check")["projections"]:
        rows = sketch.projections(bytes.fromhex(case["challenge"]), parameters(case["length"]))
        assert rows.shape == (40, case["length"])
        assert rows[:3, :8].tolist() == case["first"]
        assert hashlib.sha256(rows.tobytes()).hexdigest() == case["sha256"]


def test_range_checks():
    for case in load("range_check")["checks"]:
        study, challenge = parameters(case["dimension"]), bytes.fromhex(case["challenge"])
        x = vector(build_measurement.rebuild(case))
        sketches = sketch.sketch_shares(challenge, shares_of(x, bytes.fromhex(case["share_seed"])), study)
        rows = sketch.projections(challenge, study)
        u, v = (sketch.range_operand(side, s, rows, study) for side, s in zip(Side, sketches, strict=True))
        assert (sha256(u), sha256(v)) == (case["operand_a_sha256"], case["operand_b_sha256"]), case["name"]
        products = ring.expand(bytes.fromhex(case["products_seed"]), ring.Usage.SEEDED, 40)
        a = sketch.range_check_shares(Side.A, u, products, study)
        b = sketch.range_check_shares(Side.B, v, u * v - products, study)
        assert (sha256(a), sha256(b)) == (case["share_a_sha256"], case["share_b_sha256"]), case["name"]
        assert sha256(sketch.cut(a + b, study)) == case["opened_sha256"]
        assert sketch.passed_range_check(a + b, study) is case["passes"], case["name"]


def test_products():
    vectors = load("product")
    for case in vectors["products"]:
        lengths, x, y = tuple(case["lengths"]), vector(case["x"]), vector(case["y"])
        seeds = bytes.fromhex(case["seed_a"]), bytes.fromhex(case["seed_b"])
        corrections = dealer_corrections(*seeds, lengths)
        assert hexes(corrections) == case["corrections"]
        half_a, half_b = dealer_half_a(seeds[0], lengths), dealer_half_b(seeds[1], corrections, lengths)
        masked_a, masked_b = product.mask(x, half_a), product.mask(y, half_b)
        assert (hexes(masked_a), hexes(masked_b)) == (case["masked_a"], case["masked_b"])
        assert hexes(product.finish(x, masked_b, half_a, Side.A)) == case["product_a"]
        assert hexes(product.finish(y, masked_a, half_b, Side.B)) == case["product_b"]
        with pytest.raises(MalformedMessage):
            product.finish(x, masked_b[:-1], half_a, Side.A)
    for case in vectors["zero_sharing"]:
        found = product.zero_sharing(bytes.fromhex(case["key"]), case["context"], len(case["sharing"]))
        assert hexes(found) == case["sharing"]


def test_queries():
    for case in load("distance")["queries"]:
        assert (
            hexes(measurement.distance_query(vector(case["sketch"]), case["numerator"], case["grid"])) == case["query"]
        )


def test_distances():
    vectors = load("distance")
    for case in vectors["distances"]:
        study, challenge = parameters(case["dimension"]), bytes.fromhex(case["challenge"])
        own, site = (
            vector(honest(case[who]["label"], case["dimension"], case[who]["norm_units"]))
            for who in ("requester", "site")
        )
        q = measurement.distance_query(
            sketch.sketch_vector(challenge, own, study), case["numerator"], study.weight_grid
        )
        assert sha256(q) == case["query_sha256"]
        q_a = ring.expand(bytes.fromhex(case["query_seed"]), ring.Usage.QUERY, q.size)
        sketches = sketch.sketch_shares(challenge, shares_of(site, bytes.fromhex(case["share_seed"])), study)
        d_a, d_b = distance_factor(sketches[0], q_a), distance_factor(sketches[1], q - q_a)
        assert (sha256(d_a.own), sha256(d_b.own)) == (case["difference_a_sha256"], case["difference_b_sha256"])
        a, b = d_a.share(int(case["product_a"], 16)), d_b.share(int(case["product_b"], 16))
        assert (f"{a:016x}", f"{b:016x}") == (case["distance_a"], case["distance_b"])
        found = measurement.open_distance(a, b, case["numerator"], study)
        # Four correctly rounded float64 steps (integer, root, scale, weight), the expected value rounded once.
        assert math.isclose(found, case["distance"], rel_tol=5 * 2.0**-53, abs_tol=0)
    for bad in vectors["bad_openings"]:
        with pytest.raises(ProtocolViolation):
            measurement.open_distance(int(bad["share_a"], 16), int(bad["share_b"], 16), 32, parameters(31))


# --- challenge, sum, release -------------------------------------------------------------------------------------


def test_challenges():
    for case in load("release")["coin"]:
        nonce_a, nonce_b = bytes.fromhex(case["nonce_a"]), bytes.fromhex(case["nonce_b"])
        assert nonce_commitment(case["round"], case["set_digest"], nonce_a) == case["commitment"]
        found = transcript(case["round"], case["set_digest"], nonce_a, nonce_b)
        assert (found.commitment_a, found.challenge) == (case["commitment"], case["challenge"])


def test_a_released_sum():
    case = load("release")["round"]
    study = parameters(len(case["opened"]))
    updates, keys = [vector(x) for x in case["updates"]], [bytes.fromhex(key) for key in case["share_seeds"]]
    sources = [shares_of(x, key) for x, key in zip(updates, keys, strict=True)]
    t, bound = bytes.fromhex(case["mask_seed"]), case["bound"]
    opened = []
    for start in range(0, study.dimension, 8):
        stop = min(start + 8, study.dimension)
        y_a, y_b = (release.sum_chunk([pair[i] for pair in sources], start, stop) for i in (0, 1))
        masked = release.masked_sum_chunk(y_a, t, start)
        combined = release.combine_chunk(masked, y_b)
        found = {"sum_a": y_a, "sum_b": y_b, "masked": masked, "combined": combined}
        assert {name: hexes(x) for name, x in found.items()} == {name: case[name][start:stop] for name in found}
        opened.append(release.open_aggregate_chunk(combined, t, start, bound))
    whole = np.concatenate(opened)
    assert whole.tolist() == case["opened"]
    average = release.average_chunk(whole, sum(case["numerators"]) / case["grid"], study)
    assert average.dtype == np.float32
    assert average.tolist() == case["average"]


def test_a_coordinate_beyond_the_bound_is_refused():
    vectors = load("release")
    t, bound = bytes.fromhex(vectors["round"]["mask_seed"]), vectors["round"]["bound"]
    for within in vectors["within_bound"]:
        assert abs(int(release.open_aggregate_chunk(vector([within]), t, 0, bound)[0])) == bound
    for beyond in vectors["out_of_bound"]:
        with pytest.raises(AggregateOutOfBounds):
            release.open_aggregate_chunk(vector([beyond]), t, 0, bound)


# --- oblivious transfer ------------------------------------------------------------------------------------------


def test_polynomial_hash():
    vectors = load("transfer")
    for case in vectors["hash"]:
        columns = np.frombuffer(bytes.fromhex(case["column"]), dtype=np.uint8)[np.newaxis]
        assert extension.column_hashes(bytes.fromhex(vectors["chi"]), columns).tobytes().hex() == case["hash"]


def test_consistency_check():
    """An honest extension passes; every receiver whose columns disagree is caught, and no other verdict is right."""
    vectors = load("transfer")
    chi, delta = bytes.fromhex(vectors["chi"]), bytes.fromhex(vectors["delta"])
    t_columns, choices = (np.frombuffer(x, dtype=np.uint8) for x in build_transfer.extension())
    t_columns = t_columns.reshape(128, -1)
    answer = extension.check_answer(chi, choices, t_columns)
    for case in vectors["checks"]:
        delta_bits = np.unpackbits(np.frombuffer(delta, dtype=np.uint8), bitorder="little")
        claimed_by_column = np.tile(choices, (128, 1))
        for j, error in case["errors"].items():
            claimed_by_column[int(j)] ^= np.frombuffer(bytes.fromhex(error), dtype=np.uint8)
        q_columns = t_columns ^ delta_bits[:, np.newaxis] * claimed_by_column
        assert hashlib.sha256(q_columns.tobytes()).hexdigest() == case["q_columns_sha256"]
        assert answer.choices_hash.tobytes().hex() == case["x_hash"]
        assert hashlib.sha256(answer.column_hashes.tobytes()).hexdigest() == case["t_hashes_sha256"]
        hashes = extension.column_hashes(chi, q_columns)
        assert hashlib.sha256(hashes.tobytes()).hexdigest() == case["q_hashes_sha256"]
        if case["holds"]:
            extension.verify_check(chi, delta, q_columns, answer)
        else:
            with pytest.raises(ConsistencyCheckFailed):
                extension.verify_check(chi, delta, q_columns, answer)


def test_row_hash():
    case = load("transfer")["row_hash"]
    rows = np.frombuffer(bytes.fromhex("".join(case["rows"])), dtype=np.uint8).reshape(-1, 16)
    assert hexes(RowHash(bytes.fromhex(case["key"]))(rows, case["first_index"])) == case["hashes"]


def test_bit_by_bit_products():
    for case in load("transfer")["gilboa"]:
        zero, one = (ring.expand(bytes.fromhex(case[f"{p}_seed"]), ring.Usage.SEEDED, 64) for p in ("zero", "one"))
        a, b = vector([case["a"]]), vector([case["b"]])
        packed, sender = ot_kernels.sender_products(zero, one, b)
        assert packed.astype("<u4").tobytes().hex() == case["packed"]
        chosen = np.where((a >> np.arange(64, dtype=np.uint64)) & np.uint64(1), one, zero)
        receiver = ot_kernels.receiver_products(chosen, packed, a)
        assert (hexes(sender), hexes(receiver)) == ([case["sender"]], [case["receiver"]])


# --- rules and policy --------------------------------------------------------------------------------------------


def test_weight_erosion():
    vectors = load("weights")
    e = vectors["erosion"]
    rule = WeightErosion(e["distance_penalty"], e["size_penalty"], e["batch"], e["grid"])
    state = rule.init((SiteFacts(name="b", samples=e["samples"]),))
    for step in e["steps"]:
        assert state.alpha_of("b") == step["before"]
        measured = Measured(
            round=step["round"], distances=(("b", step["d_rel"]),), requester_norm=1.0, took_part=("b",)
        )
        state = rule.apply(state, measured)
        assert state.alpha_of("b") == step["after"]
    for case in vectors["median"]:
        standing = tuple(SiteStanding(name=f"s{i}", samples=9, alpha=a) for i, a in enumerate(case["values"]))
        joined = rule.admit(RuleState(sites=standing), (SiteFacts(name="late", samples=9),))
        assert joined.alpha_of("late") == case["median"]


def test_policy_on_shares_of_the_weights():
    for case in load("weights")["policy"]:
        names = tuple(f"s{i}" for i in range(1 + len(case["others"])))
        of = weight_list(dict(zip(names, [case["own"], *case["others"]], strict=True)))
        announced = announcement(of, m=case["least"])
        own = SitePolicy(assumed_colluders=case["colluders"])
        study = parameters(31)

        def decide(own=own, study=study, announced=announced, of=of) -> None:
            check_enough_contributors(announced, study, own)
            check_largest_share("s0", announced, of, study, own)

        if case["contributes"]:
            decide()
        else:
            with pytest.raises(PolicyRefusal):
                decide()
