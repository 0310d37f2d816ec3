"""Opening a released sum: the average, its bound, and evidence that does not hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import pytest

from client_agent.net.exchange import TransportFailure
from client_agent.study.release import Outputs, own_key_id
from protocol.arithmetic.ring import Usage, expand, to_bytes
from protocol.errors import (
    AggregateOutOfBounds,
    AnnouncementMismatch,
    BadSignature,
    BrokenSeal,
    MalformedMessage,
    MoietyError,
    ProtocolViolation,
    TranscriptMismatch,
    UnknownParty,
)
from protocol.messages.bodies import output_kind
from protocol.messages.control import OutputHeader, Purpose, RuleName, RuleSpec, ShareKind, Study, SummarySpec, sign
from protocol.parameters import Needs
from protocol.protection.interface import AtSite
from protocol.protection.shares import open_summary
from protocol.release import masking_side
from protocol.rounds.evidence import PastRelease, check_release
from protocol.sharing import Side
from protocol.summary.table_one import TableOne
from tests.sealed_bodies import closed
from tests.unit.client_agent.federation import (
    CONTRIBUTORS,
    DIGEST,
    PARAMETERS,
    REQUESTER,
    ROSTER,
    announcement,
    keys,
    release,
    signed_by_both,
    study,
    weight_list,
)
from tests.unit.wire.test_schema import SCHEMA

T = TypeVar("T")
SITE = "c1"
SEED = bytes(range(32))
SELF_WEIGHTED = study().model_copy(update={"rule": RuleSpec(name=RuleName.WFEDAVG)})
SUM = np.arange(PARAMETERS.dimension, dtype=np.int64) - 500


@dataclass
class FakeServer:
    """Serves one half of an output, sealed to ``recipient``."""

    past: PastRelease
    side: Side
    total: np.ndarray
    recipient: str = SITE
    named: str = SITE
    cut: int = 0
    extra: bytes = b""
    breaks: int = 0
    length: int = PARAMETERS.dimension

    def fetch_output(self, name: str, round_number: int, take: Callable[[Iterator[bytes]], T], most_bytes: int) -> T:
        mask = expand(SEED, Usage.OUTPUT_MASK, self.total.size)
        header = OutputHeader(
            release_digest=self.past.release_set.message.digest(),
            side=self.side,
            share_kind=output_kind(self.side, round_number, 64),
            recipient=own_key_id(ROSTER, self.named),
            length=self.length,
        )
        vector = header.share_kind is ShareKind.VECTOR
        body = to_bytes(self.total.view(np.uint64) - mask) if vector else SEED
        sealed = closed(header, [body + self.extra], keys(self.recipient).sealing.public)
        whole = sealed[: len(sealed) - self.cut]
        if self.breaks:  # the real client begins again after a transport error
            self.breaks -= 1
            with suppress(TransportFailure):
                take(torn(whole[: len(whole) // 2]))
        return take(whole[at : at + 999] for at in range(0, len(whole), 999))


def torn(pieces: bytes) -> Iterator[bytes]:
    yield pieces
    raise TransportFailure("cut")


def reader(a: FakeServer, b: FakeServer, of: Study | None = None) -> Outputs:
    clients = {Side.A: a, Side.B: b}
    return Outputs(AtSite(of or study(), SITE, ROSTER), DIGEST, keys(SITE).sealing, clients)  # type: ignore[arg-type]


def servers(past: PastRelease, total: np.ndarray = SUM, **changes: object) -> tuple[FakeServer, FakeServer]:
    return (
        FakeServer(past, Side.A, total, **changes),  # type: ignore[arg-type]
        FakeServer(past, Side.B, total, **changes),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("round_number", [1, 2])
def test_the_average_of_a_released_round(round_number: int) -> None:
    past = release(round_number)
    average = reader(*servers(past)).open(past)
    sum_of_weights = 1 + 3 * 16 / 32
    expected = (SUM.astype(np.float64) / (PARAMETERS.scale * sum_of_weights)).astype(np.float32)
    np.testing.assert_array_equal(average, expected)


def test_a_connection_that_breaks_makes_the_opening_begin_anew() -> None:
    past = release()
    whole, broken = reader(*servers(past)).open(past), reader(*servers(past, breaks=1)).open(past)
    np.testing.assert_array_equal(whole, broken)


def test_the_masking_side_alternates() -> None:
    assert [masking_side(number) for number in (1, 2, 3)] == [Side.A, Side.B, Side.A]


def test_a_sum_longer_than_clipped_updates_make_it_discards_the_round() -> None:
    """In one coordinate, or spread over many of which each is small; the requester's own weight of 1 counts."""
    past, total = release(), np.zeros_like(SUM)
    longest = PARAMETERS.encoded_norm * (32 + 3 * 16) / 32 + 4 * math.sqrt(total.size)
    total[7] = int(longest)
    reader(*servers(past, total)).open(past)
    total[7] = -math.ceil(longest) - 1
    with pytest.raises(AggregateOutOfBounds, match="1 of 1000 coordinates"):
        reader(*servers(past, total)).open(past)
    total[:] = int(longest / math.sqrt(total.size))
    reader(*servers(past, total)).open(past)
    total += 1
    with pytest.raises(AggregateOutOfBounds, match=r"the sum has norm .* the round is discarded"):
        reader(*servers(past, total)).open(past)


def own_weighted(weights: float) -> np.ndarray:
    """A sum of four sites' updates whose own weights add up to ``weights``."""
    total = SUM.copy()
    total[-1] = round(weights * PARAMETERS.encoded_norm)
    return total


def test_where_sites_weigh_themselves_the_last_coordinate_divides_the_sum() -> None:
    past, total = release(), own_weighted(2.5)
    opener = reader(*servers(past, total), SELF_WEIGHTED)
    expected = (total[:-1].astype(np.float64) / (PARAMETERS.scale * 2.5)).astype(np.float32)
    np.testing.assert_array_equal(opener.open(past), expected)


@pytest.mark.parametrize("weights", [4 / 32 - 0.01, 4.01, -1.0])
def test_a_sum_of_weights_that_four_sites_cannot_have_discards_the_round(weights: float) -> None:
    past = release()
    opener = reader(*servers(past, own_weighted(weights)), SELF_WEIGHTED)
    with pytest.raises(AggregateOutOfBounds, match="the weights of 4 sites"):
        opener.open(past)


def of_classes(classes: int) -> Study:
    of = study()
    return of.model_copy(update={"model": of.model.model_copy(update={"classes": classes})})


def test_class_counts_are_opened_exactly() -> None:
    past, total = release(), np.zeros(PARAMETERS.dimension, dtype=np.int64)
    total[:3] = (7, 0, 12345)
    assert reader(*servers(past, total), of_classes(3)).open_counts(past) == (7, 0, 12345)
    with pytest.raises(AggregateOutOfBounds, match="1 numbers behind the 2 classes"):
        reader(*servers(past, total), of_classes(2)).open_counts(past)
    total[0] = -1
    with pytest.raises(AggregateOutOfBounds, match=r"negative in classes \[0\]"):
        reader(*servers(past, total), of_classes(3)).open_counts(past)


def test_a_summary_is_opened_in_its_own_length() -> None:
    past = release()
    past = past.model_copy(update={"announcement": past.announcement.model_copy(update={"purpose": Purpose.SUMMARY})})
    of = study().model_copy(update={"data_schema": SCHEMA, "summary": SummarySpec(bins=4)})
    total = np.zeros(of.summary_layout.length, dtype=np.int64)

    def opened() -> TableOne:
        outputs = reader(*servers(past, total, length=total.size), of)
        return open_summary(outputs.at, past, partial(outputs.fetch, past))

    total[0] = 3
    assert [column.values for column in opened().numeric] == [3 * of.summary_layout.rounded_to]
    total[0] = -1
    with pytest.raises(AggregateOutOfBounds):
        opened()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"recipient": "c2"}, BrokenSeal),
        ({"named": "c2"}, TranscriptMismatch),
        ({"cut": 1}, BrokenSeal),
        ({"extra": b"12345678"}, MalformedMessage),
        ({"extra": b"1"}, MalformedMessage),
        ({"total": SUM[:-1]}, MalformedMessage),
    ],
)
def test_a_wrong_output(changes: dict[str, object], error: type[MoietyError]) -> None:
    past = release()
    with pytest.raises(error):
        reader(*servers(past, **changes)).open(past)  # type: ignore[arg-type]


def test_sound_evidence() -> None:
    check_release(release(), ROSTER, DIGEST)
    with pytest.raises(AnnouncementMismatch, match="another study"):
        check_release(release(), ROSTER, "00" * 32)


def test_every_piece_of_evidence_is_needed() -> None:
    past, requester = release(), keys(REQUESTER)
    agreed = past.agreed_set.message

    def changed_release(**changes: object) -> PastRelease:
        message = past.release_set.message.model_copy(update=changes)
        return past.model_copy(update={"release_set": sign(message, REQUESTER, requester.signing)})

    unsigned = past.agreed_set.model_copy(update={"signatures": past.agreed_set.signatures[:1]})
    elsewhere = signed_by_both(agreed.model_copy(update={"announcement_digest": "00" * 32}))
    forged = sign(past.release_set.message, "c1", keys("c1").signing)
    cases: list[tuple[PastRelease, type[MoietyError]]] = [
        (past.model_copy(update={"agreed_set": unsigned}), BadSignature),
        (past.model_copy(update={"agreed_set": elsewhere}), AnnouncementMismatch),
        (past.model_copy(update={"release_set": forged}), BadSignature),
        (past.model_copy(update={"weight_list": weight_list(numerators=15)}), AnnouncementMismatch),
        (past.model_copy(update={"announcement": announcement(opens=Needs.NOTHING)}), AnnouncementMismatch),
        (changed_release(agreed_set_digest="00" * 32), TranscriptMismatch),
        (changed_release(attempt=2), TranscriptMismatch),
        (changed_release(sites=(REQUESTER, *CONTRIBUTORS, "c9")), ProtocolViolation),
        (changed_release(sites=(REQUESTER, *CONTRIBUTORS, "c1")), ProtocolViolation),
        (changed_release(sites=CONTRIBUTORS), ProtocolViolation),
        (changed_release(failed_check=("c1",)), ProtocolViolation),
        (changed_release(failed_check=("c9",)), ProtocolViolation),
        (changed_release(sites=(REQUESTER, "c1", "c2")), ProtocolViolation),
    ]
    for wrong, error in cases:
        with pytest.raises(error):
            check_release(wrong, ROSTER, DIGEST)


def test_a_site_that_was_removed_has_no_output() -> None:
    with pytest.raises(UnknownParty, match="'gone' is not in the roster any more"):
        own_key_id(ROSTER, "gone")
