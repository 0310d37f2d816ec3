"""Shares of an update, and shares and ciphertexts behind one interface."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.arithmetic.ring import from_bytes
from protocol.errors import AnnouncementMismatch, MalformedMessage, UnknownResource
from protocol.messages.bodies import content_bytes
from protocol.messages.control import Announcement, Purpose, RuleName, RuleSpec, ShareKind, Study
from protocol.messages.purpose import PROTECTION_PLANS, StudyProtection
from protocol.parameters import Needs
from protocol.protection.interface import AtSite, Encoded, Protection
from protocol.protection.registry import encoded_bytes, expected, output_header, protection_of
from protocol.sharing import (
    SeedShare,
    Side,
    VectorShare,
    chunk_source,
    expand_share,
    split,
    split_chunk_into,
    vector_side,
)
from tests.chunks import reconstruct
from tests.unit.client_agent.federation import ROSTER, announcement, release, study

# --- sharing ----------------------------------------------------------------------------------------------------------

SEED = bytes(range(32))
EDGES = np.array([0, 1, 2**32, 2**63, 2**64 - 1], dtype=np.uint64)


def test_pieces_are_shared_and_read_as_the_whole(rng):
    x = rng.integers(0, 2**64, 1001, dtype=np.uint64)
    seed_share, vector_share = split(x, SEED)
    pieced = np.empty_like(x)
    for a, b in ((0, 334), (334, 999), (999, 1001)):
        split_chunk_into(pieced[a:b], x[a:b], SEED, a)
    assert np.array_equal(pieced, vector_share.vector)
    for share in (seed_share, vector_share):
        whole = expand_share(share, 0, 1001)
        assert np.array_equal(chunk_source(share)(333, 777), whole[333:777])


def test_a_read_piece_is_a_copy():
    share = VectorShare(EDGES.copy())
    expand_share(share, 0, 5)[:] = 7
    assert np.array_equal(share.vector, EDGES)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 6), (6, 6)])
def test_pieces_outside_the_share_are_refused(start, stop):
    for share in split(EDGES, SEED):
        with pytest.raises(MalformedMessage, match="5 elements"):
            expand_share(share, start, stop)


@pytest.mark.parametrize(("seed", "length"), [(bytes(31), 5), (bytes(33), 5), (bytes(32), -1)])
def test_a_malformed_seed_share_is_refused(seed, length):
    with pytest.raises(MalformedMessage, match="32 bytes"):
        SeedShare(seed, length)


def test_secrets_stay_out_of_repr():
    seed_share, vector_share = split(EDGES, SEED)
    assert repr(seed_share) == "SeedShare(length=5)"
    assert repr(vector_share) == "VectorShare()"


def test_the_vector_alternates_between_the_servers():
    assert [vector_side(place) for place in range(4)] == [Side.A, Side.B, Side.A, Side.B]
    assert Side.A.other is Side.B
    assert Side.B.other is Side.A
    assert Side("a") is Side.A


# --- protection -------------------------------------------------------------------------------------------------------

SITE = "c1"
SHARES: Study = study().model_copy(update={"rule": RuleSpec(name=RuleName.FEDAVG)})
CKKS = SHARES.model_copy(update={"protection": StudyProtection.CKKS})
SHARED = announcement(opens=Needs.NOTHING)
KEYED = SHARED.model_copy(update={"ckks_key_id": "ab" * 16})
D = SHARES.parameters.dimension
BOTH = pytest.mark.parametrize(("of", "told"), [(SHARES, SHARED), (CKKS, KEYED)], ids=["shares", "ckks"])


def encoded(told: Announcement = SHARED) -> Encoded:
    update = np.linspace(-1, 1, D, dtype=np.float32)
    return protection_of(told).encode(AtSite(SHARES, SITE, ROSTER), told, update, 0.5, bytes(32))


@BOTH
def test_servers_get_the_parts_that_the_plan_says_and_a_site_journals_their_longest(
    of: Study, told: Announcement
) -> None:
    parts = protection_of(told).parts(of, told, 1, SITE, ROSTER)
    assert parts.keys() == told.protection.plan.holders
    assert expected(of, told, 1, SITE, ROSTER, Side.A) == parts[Side.A]
    assert encoded_bytes(of, told) == max(content_bytes(part.kind, part.length) for part in parts.values())
    assert told.protection is of.protection.of(Purpose.UPDATE)


def test_class_counts_travel_as_shares_whatever_the_study_says() -> None:
    for protection in PROTECTION_PLANS:
        assert protection.of(Purpose.COUNTS) is protection.of(Purpose.RANKING) is StudyProtection.SHARES


def test_side_b_gets_and_serves_nothing_of_ciphertexts() -> None:
    with pytest.raises(MalformedMessage, match="go to side A alone; this server is side B"):
        expected(CKKS, KEYED, 1, SITE, ROSTER, Side.B)
    chosen = release().release_set.message
    assert output_header(CKKS, KEYED, chosen, Side.A, "ab" * 16).share_kind is ShareKind.CIPHERTEXT
    with pytest.raises(UnknownResource, match="at side A alone"):
        output_header(CKKS, KEYED, chosen, Side.B, "ab" * 16)


def contents(protection: Protection, pieces: list[bytes]) -> dict[ShareKind, bytes]:
    parts = protection.parts(SHARES, SHARED, 1, SITE, ROSTER).values()
    return {part.kind: b"".join(map(bytes, protection.content(part, pieces, b"s" * 32))) for part in parts}


def test_both_shares_make_the_encoding_in_pieces_of_any_length() -> None:
    whole, known = b"".join(encoded().pieces), protection_of(SHARED)
    assert len(whole) == encoded_bytes(SHARES, SHARED)
    for size in (len(whole), 999):
        found = contents(known, [whole[at : at + size] for at in range(0, len(whole), size)])
        halves = SeedShare(found[ShareKind.SEED], D), VectorShare(from_bytes(found[ShareKind.VECTOR], D))
        assert reconstruct(*halves).tobytes() == whole
    for wrong in (whole[:-8], whole + bytes(8)):
        with pytest.raises(MalformedMessage, match=f"its part {D}"):
            contents(known, [wrong])


def test_without_a_key_nothing_is_encrypted() -> None:
    with pytest.raises(AnnouncementMismatch, match="brought no CKKS key"):
        encoded(KEYED)
