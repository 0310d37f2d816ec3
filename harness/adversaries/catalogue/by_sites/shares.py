"""Shares that are sealed, bound, sized or sent otherwise than a site's share of the present round."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Final

import httpx
import numpy as np

from harness.adversaries import forgeries as forged
from harness.adversaries.catalogue.attack import Attack, Party, passes
from harness.adversaries.catalogue.refused import Refused, Row, Words
from harness.adversaries.hostile import shares as sent
from harness.adversaries.hostile import told
from harness.adversaries.hostile.act import Act, Round
from harness.adversaries.scripted_rounds import LARGE, SITES, SMALL, STRANGER, VICTIM, Phase
from protocol.errors import BrokenSeal
from protocol.errors import ErrorCode as E
from protocol.sharing import Side
from protocol.wire.channel.sealing import SealedReader
from protocol.wire.messages import ContributionHeader, Receipt, Signed
from servers.http.bodies import _Opening
from servers.store.records import ContributionRecord

_PART: Final = "protocol.bodies.contribution.Part.require"
_COLLECT: Final = "servers.rounds.collect."
_MEGABYTE: Final = 2**20

# --- what is sent -----------------------------------------------------------------------------------------------------


def _vector(opened: Round, by: int) -> bytes:
    """So many elements longer than the model."""
    return sent.vector_of(opened, SMALL + by).sealed()


def _fifty_times(opened: Round) -> bytes:
    return _vector(opened, 49 * SMALL)


def _of_a_stranger(opened: Round) -> httpx.Response:
    """Sound, of a site of the roster that the round does not list."""
    share = forged.honest_contribution(
        np.ones(SMALL, dtype=np.uint64),
        opened.announcement,
        STRANGER,
        opened.federation.roster,
        secrets.token_bytes(32),
    )
    return opened.put(STRANGER, Side.A, share[Side.A].sealed())


# --- with the defence taken out ---------------------------------------------------------------------------------------


def _any_header(part: object, raw: bytes) -> ContributionHeader:
    return ContributionHeader.parse(raw)


def _any_length(opening: _Opening[ContributionHeader]) -> ContributionHeader:
    opening._take(opening.reader.finish())
    header = opening._header
    assert isinstance(header, ContributionHeader)
    return header


def _without_its_end(reader: SealedReader) -> bytes:
    """What came is all: the last chunk need not say that it is the last."""
    try:
        return _FINISH(reader)
    except BrokenSeal:
        return b""


_FINISH: Final = SealedReader.finish


def _first_receipt(server: object, study: object, known: ContributionRecord, digest: str) -> Signed[Receipt]:
    return known.receipt


def _everybody(server: object, announcement: object) -> frozenset[str]:
    return frozenset((*SITES, STRANGER))


def _plenty(*_: object) -> int:
    return 2**24


_LENGTHS: Final = {"servers.http.bodies._Opening.finish": _any_length, f"{_COLLECT}most_bytes": _plenty}

# --- families ---------------------------------------------------------------------------------------------------------


def _sealing() -> Refused:
    def of(change: sent.Change) -> Act:
        return sent.share(lambda r: change(r.honest[VICTIM][Side.B].sealed()))

    return Refused(
        Words(
            "share-sealed-wrongly",
            Party.SITE,
            "sends shares that are cut off, altered, swapped, sealed to another key, or not sealed at all",
            "HPKE to the server's key over the header, and chunks that hold their place and which is the last",
        ),
        {"protocol.wire.channel.sealing.SealedReader.finish": _without_its_end, **_LENGTHS, **_UNCOMMITTED},
        (
            Row(
                "sealed to the wrong key",
                sent.share(lambda r: forged.sealed_to_the_wrong_key(r.honest[VICTIM], Side.B)),
                400,
                E.BROKEN_SEAL,
            ),
            Row("truncated", of(forged.truncated), 400, E.BROKEN_SEAL),
            Row("over-long", of(forged.over_long), 400, E.BROKEN_SEAL),
            Row("a megabyte over-long", of(lambda s: forged.over_long(s, _MEGABYTE)), 413, E.TOO_LARGE),
            Row("bit flipped", of(forged.bit_flipped), 400, E.BROKEN_SEAL),
            Row("header changed after sealing", sent.share(sent.altered_header), 400, E.BROKEN_SEAL),
            Row("not sealed at all", sent.share(lambda r: b"\x00" * 3000), 400, E.MALFORMED_MESSAGE),
            Row("empty body", sent.share(lambda r: b""), 400, E.BROKEN_SEAL),
            *_chunks(),
        ),
    )


def _chunks() -> tuple[Row, ...]:
    swapped = sent.share(lambda r: forged.chunks_swapped(r.honest[VICTIM][Side.B]))
    missing = sent.share(lambda r: forged.last_chunk_missing(r.honest[VICTIM][Side.B]))
    return (
        Row("chunks swapped", swapped, 400, E.BROKEN_SEAL, dimension=LARGE),
        Row("last chunk missing", missing, 400, E.BROKEN_SEAL, dimension=LARGE, says="last chunk"),
    )


_UNCOMMITTED: Final = {"servers.http.bodies.ContributionIntake.check_commitment": passes}


def _header() -> Refused:
    return Refused(
        Words(
            "share-of-something-else",
            Party.SITE,
            "hands in another site's share, another announcement's, another study's, another round's, or the other "
            "server's",
            "the header of a share names site, side, study, round and announcement, and is sealed with it",
        ),
        {_PART: _any_header},
        (
            Row("in another site's name", sent.in_another_name, 403, E.NOT_LISTED),
            Row("bound to another announcement", sent.for_another_announcement, 409, E.ANNOUNCEMENT_MISMATCH),
            Row("another study's digest", sent.header(study_digest="00" * 32), 409, E.ANNOUNCEMENT_MISMATCH),
            Row("wrong round in the header", sent.header(round=999), 409, E.WRONG_ROUND),
            Row("wrong attempt in the header", sent.header(attempt=2), 409, E.WRONG_ROUND),
            Row("wrong length in the header", sent.header(length=SMALL + 1), 400, E.MALFORMED_MESSAGE),
            Row("wrong protocol version", sent.header(version=told.NO_VERSION), 400, E.OTHER_VERSION, says="moiety/9"),
            Row("unknown field in the header", sent.header(note="x"), 400, E.MALFORMED_MESSAGE, says="note"),
            Row(
                "share for the other side",
                sent.share(lambda r: r.honest[VICTIM][Side.A].sealed()),
                400,
                E.MALFORMED_MESSAGE,
                says="side 'a'",
            ),
            Row("the other side's share first", sent.first_the_others_share, 400, E.MALFORMED_MESSAGE, says="vector"),
        ),
    )


def _place() -> Refused:
    return Refused(
        Words(
            "share-out-of-turn",
            Party.SITE,
            "contributes unlisted, before the announcement, to another round, or late: once who is in is agreed",
            "a round takes the shares of the sites that it lists, from its announcement to its lock",
        ),
        {f"{_COLLECT}_require_open": passes, f"{_COLLECT}expected_sites": _everybody},
        (
            Row("a site that is not listed", _of_a_stranger, 403, E.NOT_LISTED, says="is not listed"),
            Row("wrong round in the address", lambda r: r.put(VICTIM, Side.A, b"x", round=999), 409, E.WRONG_ROUND),
            Row("after the lock, a late site", _of_a_stranger, 409, E.WRONG_ROUND, Phase.LOCKED),
            Row("before the announcement", sent.share(lambda r: b"x"), 409, E.WRONG_ROUND, Phase.SETTLED),
        ),
    )


def _second() -> Refused:
    return Refused(
        Words(
            "share-sent-twice",
            Party.SITE,
            "sends one share and then another, before the lock, after it and after the release",
            "the first share stands; the same bytes get the same receipt, and others are refused and recorded",
        ),
        {f"{_COLLECT}same_receipt": _first_receipt},
        (
            Row("same place, other bytes", sent.same_id_other_bytes, 409, E.CONFLICTING_MESSAGE, recorded=True),
            Row("both shares to one server", sent.both_shares_to_one_server, 409, E.CONFLICTING_MESSAGE, recorded=True),
            Row("after the lock", sent.same_id_other_bytes, 409, E.CONFLICTING_MESSAGE, Phase.LOCKED, recorded=True),
            Row(
                "after the release",
                sent.same_id_other_bytes,
                409,
                E.CONFLICTING_MESSAGE,
                Phase.RELEASED,
                recorded=True,
            ),
        ),
    )


def hostile_shares() -> tuple[Attack, ...]:
    """Every attack of this family."""
    short, long = sent.share(partial(_vector, by=-1)), sent.share(partial(_vector, by=1))
    return (
        _header(),
        _sealing(),
        Refused(
            Words(
                "share-not-as-committed",
                Party.SITE,
                "sends another share than it committed to",
                "commitments to both shares in both headers",
            ),
            _UNCOMMITTED,
            (
                Row(
                    "wrong commitment",
                    sent.share(lambda r: forged.another_share_than_committed(r.honest[VICTIM], Side.B)),
                    400,
                    E.COMMITMENT_MISMATCH,
                ),
            ),
        ),
        Refused(
            Words(
                "share-of-another-length",
                Party.SITE,
                "sends a share that is shorter or longer than the model, up to fifty times",
                "the length that the study's model has",
            ),
            _LENGTHS,
            (
                Row("vector too short", short, 400, E.MALFORMED_MESSAGE, says="152"),
                Row("vector too long", long, 400, E.MALFORMED_MESSAGE, says="168"),
                Row("fifty times as long", sent.share(_fifty_times), 400, E.MALFORMED_MESSAGE, says="8000"),
            ),
        ),
        _place(),
        _second(),
    )
