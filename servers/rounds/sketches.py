"""Steps from the lock to the opening: sketches, queries, products, the sealed opening (docs/protocol.md 5 to 8)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import numpy as np
from fastapi import Request

from protocol.arithmetic.ring import Ring, from_bytes, to_bytes
from protocol.errors import ConflictingMessage, WrongRound
from protocol.messages import bodies
from protocol.messages.bodies import SECRET_BYTES, Queries
from protocol.messages.control import OpeningHeader, Purpose, QueryHeader, RoundState, Study
from protocol.mpc import measurement
from protocol.mpc.measurement import product_lengths
from protocol.ot.session import CorrelationHalf
from protocol.parameters import StudyParameters
from protocol.rounds.states import RoundKey
from servers.failpoints import Point
from servers.rounds.intake import Caller, HashIntake, Opening, same_body, stream_into
from servers.server import Server
from servers.store.files import file_name
from servers.store.records import RoundRecord, StudyRecord
from servers.studies import refuse


class Sketches:
    """Sketches under way or done, in memory only; after a restart they are computed again from the shares."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._tasks: dict[RoundKey, asyncio.Task[list[Ring]]] = {}

    def begin(self, record: RoundRecord, parameters: StudyParameters) -> asyncio.Task[list[Ring]]:
        """Start sketching every agreed share, unless that is under way or done; needs the transcript."""
        known = self._tasks.get(record.key)
        if known is None or (known.done() and (known.cancelled() or known.exception() is not None)):
            for old in [key for key in self._tasks if key.study == record.key.study]:
                self._tasks.pop(old).cancel()
            work = asyncio.to_thread(self._server.shares.sketches(record, parameters))
            task = self._tasks[record.key] = asyncio.create_task(work)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody awaits it
        return self._tasks[record.key]

    def forget(self, key: RoundKey) -> None:
        self._tasks.pop(key, None)


# --- queries ----------------------------------------------------------------------------------------------------------


def parameters_of(study: StudyRecord, record: RoundRecord) -> StudyParameters:
    """The numbers that a round's vectors obey."""
    return study.study.parameters_in(record.announcement.message.purpose)


def targets_of(server: Server, record: RoundRecord) -> tuple[str, ...]:
    """The sites that the requester sends queries for: the agreed set without itself, none where it sends none."""
    if not record.announcement.message.opens.queried or record.agreed_set is None:
        return ()
    return tuple(site for site in record.agreed_set.message.sites if site != server.roster.requester)


def queries_missing(record: RoundRecord) -> bool:
    return record.announcement.message.opens.queried and record.query_header is None


async def store_queries(
    server: Server, caller: Caller, study: StudyRecord, record: RoundRecord, request: Request
) -> None:
    """Store the requester's query shares before they are used; other bytes for the same attempt are refused.

    Raises: WrongRound, MalformedMessage, TranscriptMismatch, ConflictingMessage, BrokenSeal, BadSignature, TooLarge
    """
    if record.query_digest is not None:
        digest = await same_body(request, caller, _expected_queries(server, study, record).most_bytes)
        _require_same_queries(server, record, digest)
        return
    _require_queries_welcome(record)
    expected = _expected_queries(server, study, record)
    with server.files.draft() as draft:
        opening = Opening(server.keys.sealing, expected, draft)
        intake = HashIntake(opening.feed)
        await stream_into(request, intake.feed, expected.most_bytes)
        digest, header = intake.finish(caller), await asyncio.to_thread(opening.finish)
        name = file_name("query", record.key.study, record.key.round, record.key.attempt, digest)
        await asyncio.to_thread(draft.keep, name)
    with server.store.alone(record.key.study):  # whatever happened since the body began to arrive counts
        _keep_queries(server, server.store.round(record.key) or record, header, digest, name)


def _keep_queries(server: Server, now: RoundRecord, header: QueryHeader, digest: str, name: str) -> None:
    if now.query_digest is not None:
        if now.query_file != name:
            server.files.delete([name])
        _require_same_queries(server, now, digest)
        return
    try:
        _require_queries_welcome(now)
    except WrongRound:
        server.files.delete([name])
        raise
    server.failpoints.reach(Point.BEFORE_QUERIES_STORED)
    server.store.change_round(now.key, lambda r: replace(r, query_header=header, query_digest=digest, query_file=name))
    server.failpoints.reach(Point.AFTER_QUERIES_STORED)


def _require_queries_welcome(record: RoundRecord) -> None:
    if record.state is not RoundState.LOCKED or record.transcript is None or record.outcome is not None:
        raise WrongRound(
            f"round {record.key.round} is {record.state}; queries are welcome between challenge and products"
        )
    opens = record.announcement.message.opens
    if not opens.queried:
        raise WrongRound(f"round {record.key.round} opens {opens.value}; it takes no queries")


def _require_same_queries(server: Server, record: RoundRecord, digest: str) -> None:
    if record.query_digest != digest:
        error = ConflictingMessage(f"queries for {record.key.label} came before with other bytes; the first ones stand")
        raise refuse(server, record.key.study, server.roster.requester, error)


def _expected_queries(server: Server, study: StudyRecord, record: RoundRecord) -> Queries:
    stated = record.challenged.transcript.message.digest()
    return Queries(stated, server.side, targets_of(server, record), parameters_of(study, record).sketched_length)


def _query_shares(server: Server, record: RoundRecord, parameters: StudyParameters) -> dict[str, Ring]:
    """Target -> its query share; a seed stands for all targets' vectors, one after the other; a norm's is zero."""
    if record.announcement.message.opens.of_norms and record.agreed_set is not None:
        zero = np.zeros(parameters.sketched_length, dtype=np.uint64)
        return {site: zero for site in record.agreed_set.message.sites if site != server.roster.requester}
    if record.query_header is None or record.query_file is None:
        return {}
    return bodies.read_query(record.query_header, server.files.path(record.query_file).read_bytes())


# --- products and opening ---------------------------------------------------------------------------------------------


def needed_lengths(server: Server, record: RoundRecord, parameters: StudyParameters) -> list[tuple[int, ...]]:
    """The product lengths of each agreed site's correlation, in order."""
    opens, requester = record.announcement.message.opens, server.roster.requester
    return [
        product_lengths(opens, place, site == requester, parameters)
        for place, site in enumerate(record.agreed.message.sites)
    ]


def most_elements(study: Study, sites: int) -> int:
    """The elements of the longest masked vector when all sites of the roster take part."""
    rounds = [
        (purpose.plan.opened(study.rule.needs), study.parameters_in(purpose))
        for purpose in Purpose
        if study.last_round(purpose)
    ]
    return max(
        sum(sum(product_lengths(needs, place, is_requester=False, parameters=of)) for place in range(sites))
        for needs, of in rounds
    )


@dataclass(frozen=True, eq=False)
class Products:
    """One side's products of an attempt: operands, correlations and the masked vector for the peer."""

    operands: list[measurement.Operands] = field(repr=False)
    halves: list[CorrelationHalf] = field(repr=False)
    masked: bytes = field(repr=False)


def prepare_products(
    server: Server,
    record: RoundRecord,
    sketches: list[Ring],
    halves: list[CorrelationHalf],
    parameters: StudyParameters,
) -> Products:
    """Steps 1 and 2 for every agreed site; the correlations must be marked as used before the bytes leave."""
    challenged = record.challenged
    queries = _query_shares(server, record, parameters)
    sites = [
        measurement.SiteSketch(site, sketch, queries.get(site))
        for site, sketch in zip(challenged.sites, sketches, strict=True)
    ]
    opens = record.announcement.message.opens
    operands = measurement.prepare_all(server.side, challenged.challenge, sites, parameters, opens=opens)
    masked = [measurement.masked(own, half) for own, half in zip(operands, halves, strict=True)]
    return Products(operands, halves, to_bytes(np.concatenate(masked)))


def seal_opening(
    server: Server,
    record: RoundRecord,
    products: Products,
    peer_masked: bytes | memoryview,
    zero_key: bytes,
    parameters: StudyParameters,
) -> bytes:
    """Step 3: this side's shares of the range checks and of what the round opens, sealed to the requester.

    Raises: MalformedMessage, when the peer's vector has another length
    """
    sizes = [sum(half.lengths) for half in products.halves]
    pieces = np.split(from_bytes(peer_masked, sum(sizes)), np.cumsum(sizes)[:-1])
    shares = [
        measurement.opening_share(server.side, own, piece, half, zero_key, record.key.label, parameters)
        for own, piece, half in zip(products.operands, pieces, products.halves, strict=True)
    ]
    header = OpeningHeader(
        transcript_digest=record.challenged.transcript.message.digest(),
        side=server.side,
        checked=tuple(s.site for s in shares),
        opens=record.announcement.message.opens,
    )
    secret = server.randomness.bytes(SECRET_BYTES, f"{record.key.label} opening")
    return bodies.seal_opening(header, shares, server.sealing_key_of(server.roster.requester), secret)
