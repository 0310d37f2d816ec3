"""Every body: what is written is read again, in pieces of any size; what is cut, longer, altered or foreign is not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.arithmetic.ring import to_bytes
from protocol.channel.commitment import MessageDigest
from protocol.channel.sealing import SealedReader
from protocol.channel.signing import DigestField
from protocol.ckks.ciphertext import CkksParameters, Kind, body_bytes
from protocol.errors import (
    AnnouncementMismatch,
    BrokenSeal,
    CommitmentMismatch,
    MalformedMessage,
    MoietyError,
    NotListed,
    TooLarge,
    TranscriptMismatch,
    WrongRound,
)
from protocol.messages import bodies
from protocol.messages.bodies import (
    Part,
    PartSealing,
    Queries,
    most_body_bytes,
    most_opening_bytes,
    open_body,
    query_content,
    read_opening,
    read_query,
    seal_body,
    seal_opening,
)
from protocol.messages.control import (
    ContributionHeader,
    OpeningHeader,
    QueryHeader,
    RuleName,
    RuleSpec,
    ShareKind,
    Study,
    StudyProtection,
)
from protocol.mpc.measurement import OpeningShare, value_count
from protocol.parameters import RANGE_PROJECTIONS, Needs
from protocol.protection.registry import most_bytes, protection_of
from protocol.sharing import Side, split
from servers.rounds.intake import Caller, ContributionIntake
from tests.sealed_bodies import CHUNK, FEW, KEY, LENGTHS, OTHER, PIECES, SECRET, SITE, closed, damaged, pieces, vector
from tests.unit.client_agent.federation import (
    CONTRIBUTORS,
    DIGEST,
    REQUESTER,
    ROSTER,
    announcement,
    keys,
    operator_keys,
    study,
)

ANNOUNCED = announcement()


# --- contribution -----------------------------------------------------------------------------------------------------


@dataclass
class Kept:
    """A place for what a server opens."""

    content: bytearray = field(default_factory=bytearray)

    def write(self, piece: bytes) -> None:
        self.content += piece

    def write_received(self, piece: bytes | memoryview) -> None:
        """The encrypted body, which is not kept."""


def parts(length: int) -> dict[Side, Part]:
    return bodies.share_parts(ANNOUNCED, 1, SITE, ROSTER, length)


def contributed(both: dict[Side, Part], content: dict[Side, bytes]) -> dict[Side, bytes]:
    """As a site writes both files."""
    made = {
        side: PartSealing(part, operator_keys(side).sealing.public, bytes([i]) * 32, bytes([9 + i]) * 32)
        for i, (side, part) in enumerate(both.items())
    }
    bodies = {side: b"".join(one.sealed_content([content[side]])) for side, one in made.items()}
    committed = {side: one.commitment() for side, one in made.items()}
    for side, one in made.items():
        head, digest = one.head(committed)
        assert len(head) == one.head_bytes
        bodies[side] = head + bodies[side]
        taken = MessageDigest()
        taken.update(bodies[side])
        assert taken.digest() == digest
    return bodies


def taken(body: bytes, part: Part, size: int = 2**20) -> tuple[ContributionHeader, bytes]:
    """As a server takes it in, when its site sent exactly these bytes."""
    kept, whole = Kept(), MessageDigest()
    whole.update(body)
    intake = ContributionIntake(operator_keys(part.side).sealing, part, kept)
    for piece in pieces(body, size):
        intake.feed(piece)
    header, _ = intake.finish(Caller(ROSTER.sites[2], whole.digest(), DigestField.SEALED))
    intake.check_commitment(header.commitment_a if part.side is Side.A else header.commitment_b)
    return header, bytes(kept.content)


def halves(length: int) -> dict[Side, bytes]:
    seeded, whole = split(vector(length), bytes(32))
    content = {ShareKind.SEED: seeded.seed, ShareKind.VECTOR: to_bytes(whole.vector)}
    return {side: content[part.kind] for side, part in parts(length).items()}


@FEW
@given(LENGTHS, PIECES)
def test_a_contribution_is_read_as_it_was_written(length: int, size: int) -> None:
    both, content = parts(length), halves(length)
    for side, body in contributed(both, content).items():
        header, found = taken(body, both[side], size)
        assert found == content[side]
        assert (header.share_kind, header.length) == (both[side].kind, length)
        assert len(body) <= most_body_bytes(bodies.content_bytes(both[side].kind, length))


def test_damaged_contributions_are_refused() -> None:
    both = parts(CHUNK + 5)
    for side, body in contributed(both, halves(CHUNK + 5)).items():
        for wrong in damaged(body):
            with pytest.raises((BrokenSeal, MalformedMessage, TooLarge)):
                taken(wrong, both[side])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"site": "c1"}, NotListed),
        ({"attempt": 2}, WrongRound),
        ({"announcement": announcement(opens=Needs.NOTHING)}, AnnouncementMismatch),
        ({"side": Side.B}, MalformedMessage),
        ({"length": 8}, MalformedMessage),
        ({"kind": ShareKind.SEED}, MalformedMessage),
        ({"kind": ShareKind.CIPHERTEXT}, MalformedMessage),
    ],
)
def test_another_contribution_than_the_expected_one_is_refused(
    changes: dict[str, object], error: type[MoietyError]
) -> None:
    """The vector is at side A for this site, which stands third in the roster."""
    part = parts(7)[Side.A]
    raw = replace(part, **changes).header({}).canonical()  # type: ignore[arg-type]
    with pytest.raises(error):
        part.require(raw)
    assert part.require(part.header({}).canonical()) == part.header({})


@pytest.mark.parametrize("extra", [-8, -1, 1, 8])
def test_a_contribution_of_more_or_less_than_its_header_says_is_refused(extra: int) -> None:
    both, content = parts(7), halves(7)
    content[Side.A] = (content[Side.A] + bytes(8))[: 56 + extra]
    with pytest.raises(MalformedMessage, match=f"holds {56 + extra} bytes, 56 are needed"):
        taken(contributed(both, content)[Side.A], both[Side.A])


def test_a_share_other_than_the_committed_one_is_refused() -> None:
    both = parts(7)
    one, other = (contributed(both, halves(7) | {Side.A: to_bytes(vector(7, seed))}) for seed in (1, 2))
    cut = len(one[Side.A]) - 56 - 16
    with pytest.raises((CommitmentMismatch, BrokenSeal)):
        taken(one[Side.A][:cut] + other[Side.A][cut:], both[Side.A])


def test_an_encrypted_update_names_no_commitment_of_side_b() -> None:
    part = bodies.ciphertext_parts(ANNOUNCED, 1, SITE, 8)[Side.A]
    part.require(part.header({Side.A: bytes(32)}).canonical())
    with pytest.raises(MalformedMessage, match="commitment_b must be all zeros"):
        part.require(part.header(dict.fromkeys(Side, b"x" * 32)).canonical())


def test_an_encrypted_update_goes_to_side_a_alone_and_every_length_is_known_beforehand() -> None:
    rule = RuleSpec(name=RuleName.FEDAVG)
    shared = study().model_copy(update={"rule": rule})
    encrypted: Study = shared.model_copy(update={"protection": StudyProtection.CKKS})
    told = announcement(opens=Needs.NOTHING).model_copy(update={"ckks_key_id": "ab" * 16})
    both = protection_of(ANNOUNCED).parts(shared, ANNOUNCED, 1, SITE, ROSTER)
    assert both == parts(shared.parameters.dimension)
    (part,) = protection_of(told).parts(encrypted, told, 1, SITE, ROSTER).values()
    assert (part.side, part.kind, part.length) == (Side.A, ShareKind.CIPHERTEXT, 1 + encrypted.model_dimension)
    header = part.header({Side.A: bytes(32)})
    assert part.content_bytes(header) == body_bytes(CkksParameters(), Kind.CONTRIBUTION, 1 + encrypted.model_dimension)
    longest = max(one.content_bytes(one.header(dict.fromkeys(Side, bytes(32)))) for one in both.values())
    for of, content in ((shared, longest), (encrypted, part.content_bytes(header))):
        assert most_bytes(of) >= most_body_bytes(content)


# --- query ------------------------------------------------------------------------------------------------------------


@FEW
@given(st.integers(0, 3), st.integers(1, 40), st.integers(1, 2))
def test_queries_are_read_as_they_were_written(count: int, length: int, number: int) -> None:
    asked = vector(count * length)
    total = {target: np.zeros(length, dtype=np.uint64) for target in CONTRIBUTORS[:count]}
    for side in Side:
        of = Queries(DIGEST, side, CONTRIBUTORS[:count], length)
        header = of.header(number)
        body = seal_body(header, [query_content(header, asked, SECRET[:32])], KEY.public, SECRET).whole()
        assert len(body) <= of.most_bytes
        header, found = opened_by(of, body)
        assert len(found) == of.content_bytes(header)
        for target, share in read_query(header, found).items():
            total[target] += share
    for place, target in enumerate(total):
        np.testing.assert_array_equal(total[target], asked[place * length : (place + 1) * length])


def opened_by(of: Queries, body: bytes) -> tuple[QueryHeader, bytes]:
    headers: list[QueryHeader] = []
    reader = SealedReader(KEY, lambda raw: headers.append(of.require(raw)))
    found = b"".join(open_body(reader, [body]))
    return headers[0], found


def test_other_queries_than_the_expected_ones_are_refused() -> None:
    of = Queries(DIGEST, Side.A, CONTRIBUTORS, 5)
    for changes, error in (
        ({"transcript_digest": OTHER}, TranscriptMismatch),
        ({"side": Side.B}, MalformedMessage),
        ({"targets": CONTRIBUTORS[::-1]}, MalformedMessage),
        ({"targets": CONTRIBUTORS[1:]}, MalformedMessage),
        ({"length": 6}, MalformedMessage),
    ):
        with pytest.raises(error):
            of.require(replace(of, **changes).header(1).canonical())
    for kind in (ShareKind.VECTOR48, ShareKind.CIPHERTEXT):
        with pytest.raises(MalformedMessage, match="as a seed or a vector"):
            of.require(of.header(1).model_copy(update={"share_kind": kind}).canonical())
    body = closed(of.header(2), [to_bytes(vector(15))], KEY.public)
    for wrong in damaged(body):
        with pytest.raises((BrokenSeal, MalformedMessage, TooLarge)):
            opened_by(of, wrong)


# --- opening ----------------------------------------------------------------------------------------------------------

CHECKED = (REQUESTER, *CONTRIBUTORS)


def header_of(opens: Needs = Needs.DISTANCES, side: Side = Side.A, stated: str = DIGEST) -> OpeningHeader:
    return OpeningHeader(transcript_digest=stated, side=side, checked=CHECKED, opens=opens)


def shares(opens: Needs) -> list[OpeningShare]:
    return [
        OpeningShare(site, vector(RANGE_PROJECTIONS, i), vector(value_count(opens, i, site == REQUESTER), 9 + i))
        for i, site in enumerate(CHECKED)
    ]


@pytest.mark.parametrize("opens", list(Needs))
def test_an_opening_is_read_as_it_was_written(opens: Needs) -> None:
    body = seal_opening(header_of(opens), shares(opens), KEY.public, SECRET)
    assert len(body) <= most_opening_bytes(len(CHECKED))
    found = read_opening(body, header_of(opens), REQUESTER, KEY)
    for one, expected in zip(found, shares(opens), strict=True):
        assert one.site == expected.site
        np.testing.assert_array_equal(one.range_shares, expected.range_shares)
        np.testing.assert_array_equal(one.values, expected.values)


def test_another_opening_than_the_expected_one_is_refused() -> None:
    body = seal_opening(header_of(), shares(Needs.DISTANCES), KEY.public, SECRET)
    for expected in (header_of(Needs.NOTHING), header_of(side=Side.B), header_of(stated=OTHER)):
        with pytest.raises(TranscriptMismatch):
            read_opening(body, expected, REQUESTER, KEY)
    for wrong in damaged(body):
        with pytest.raises((BrokenSeal, MalformedMessage, TooLarge)):
            read_opening(wrong, header_of(), REQUESTER, KEY)
    with pytest.raises(BrokenSeal):
        read_opening(body, header_of(), REQUESTER, keys("c1").sealing)
    short = seal_opening(header_of(), shares(Needs.DISTANCES)[:-1], KEY.public, SECRET)
    with pytest.raises(MalformedMessage, match=r"server a's opening has \d+ bytes, expected \d+"):
        read_opening(short, header_of(), REQUESTER, KEY)
