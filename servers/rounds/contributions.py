"""Announcements and contributions, up to the lock (docs/protocol.md 3, 4)."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace

from fastapi import Request

from protocol.channel.commitment import MessageDigest
from protocol.errors import ConflictingMessage, NotListed, RosterRefused, WrongRound
from protocol.messages.bodies import content_bytes
from protocol.messages.control import (
    Announcement,
    CollectedContribution,
    ContributionHeader,
    Receipt,
    Roster,
    RoundState,
    Signed,
    require_signatures,
    signature_from,
)
from protocol.messages.letter import LetterKind, Topic
from protocol.messages.peer import CollectedSet
from protocol.protection.registry import expected, most_bytes
from protocol.roster.chain import RosterChain
from protocol.rounds.agreement import check_said, opens_round, still_awaited
from protocol.rounds.states import RoundEvent, RoundKey, StudyEvent, study_step
from protocol.sharing import Side
from servers.ckks.process import content_check
from servers.failpoints import Point
from servers.rounds.intake import Caller, ContributionIntake, sealed_digest, stream_into
from servers.rounds.letters import forget_rounds_before
from servers.server import Server
from servers.store.files import file_name
from servers.store.records import ContributionRecord, RoundRecord, StudyRecord
from servers.store.upload_parts import Awaited
from servers.studies import refuse


def announce(server: Server, study: StudyRecord, number: int, signed: Signed[Announcement]) -> Signed[Announcement]:
    """Countersign one announcement per round number; the same again gets the same answer.

    Raises: BadSignature, WrongRound, ConflictingMessage, AnnouncementMismatch, MalformedMessage
    """
    with server.store.alone(study.digest):
        return _announced(server, server.store.study(study.digest), number, signed)


def _announced(server: Server, study: StudyRecord, number: int, signed: Signed[Announcement]) -> Signed[Announcement]:
    announcement = require_signatures(signed, server.roster, [server.roster.requester])
    record = server.store.current_round(study.digest)
    last = None if record is None else record.begun
    before = None if last is None else last.announcement.roster_head
    roster = announced_under(server.chain, announcement.roster_head, before)
    check_said(announcement, number, study.study, study.digest, roster, last, server.clock())
    contributors = frozenset(p.name for p in roster.contributors)
    try:
        new = opens_round(announcement, last, study.state, contributors, study.study.parameters.least_contributors)
    except ConflictingMessage as error:
        raise refuse(server, study.digest, server.roster.requester, error) from None
    if not new:
        return _last_round(server, study, number).announcement
    server.require_taking()
    own = signature_from(signed, server.roster.requester)
    countersigned = server.countersign(Signed[Announcement](message=announcement, signatures=(own,)))
    state = study_step(study.state, StudyEvent.ANNOUNCED)
    if state is not study.state:
        resumed = replace(study, state=state, reason="", absent_in_a_row=0)
        server.store.change_study(study.digest, lambda _: resumed)
    key = RoundKey(study.digest, number, 1)
    server.failpoints.reach(Point.BEFORE_ANNOUNCEMENT_STORED)
    server.store.add_round(RoundRecord(key, RoundState.ANNOUNCED, countersigned, float(announcement.closes_at_s)))
    server.failpoints.reach(Point.AFTER_ANNOUNCEMENT_STORED)
    forget_rounds_before(server, study, number)
    server.uploads.keep_only(study.digest, key)
    return countersigned


def announced_under(chain: RosterChain, named: str | None, before: str | None) -> Roster:
    """The roster of the link that an announcement names: a known one, and none ``before`` the last round's.

    A link before the newest one is taken: its requester, or the other server, may not have that yet, and who was
    removed is refused whatever an announcement lists. Raises: RosterUnknown, RosterRefused
    """
    if chain.place_of(named) < chain.place_of(before):
        raise RosterRefused(
            f"the announcement names change {chain.place_of(named)} of the roster, the round before ran under change "
            f"{chain.place_of(before)}: a study does not go back"
        )
    return chain.roster_under(named)


def roster_of(server: Server, record: RoundRecord) -> Roster:
    """The roster that a round runs under: its places, and who can be in it."""
    return server.chain.roster_under(record.announcement.message.roster_head)


def round_of(server: Server, study: StudyRecord, key: RoundKey) -> RoundRecord:
    """The attempt that an address names, which must be the current one.

    Raises: WrongRound
    """
    current = _last_round(server, study, key.round)
    if current.key != key:
        raise WrongRound(
            f"study {study.name!r} is at round {current.key.round}, attempt {current.key.attempt}; "
            f"found round {key.round}, attempt {key.attempt}"
        )
    return current


def _last_round(server: Server, study: StudyRecord, asked: int) -> RoundRecord:
    last = server.store.current_round(study.digest)
    if last is None:
        raise WrongRound(f"study {study.name!r} has no round yet, found round {asked}")
    return last


def expected_sites(server: Server, announcement: Announcement) -> frozenset[str]:
    return frozenset((*announcement.listed, server.roster.requester))


async def contribute(
    server: Server, caller: Caller, study: StudyRecord, key: RoundKey, request: Request
) -> Signed[Receipt]:
    """Store one sealed share durably, then sign for it; the same bytes get the same receipt.

    Raises: NotListed, WrongRound, AnnouncementMismatch, MalformedMessage, BrokenSeal, CommitmentMismatch,
            ConflictingMessage, BadSignature, TooLarge, StorageFull
    """
    known, limit_bytes = server.store.contribution(key, caller.name), most_bytes(study.study)
    if known is not None:
        again = MessageDigest()
        await stream_into(request, again.update, limit_bytes)
        return same_receipt(server, study, known, sealed_digest(caller, again))
    of = awaited(server, study, key, caller.name)
    server.files.require_room(of.content_bytes)
    with server.shares.draft(of.part.kind, Point.UPLOAD_MIDWAY, Point.DISK_FULL) as draft:
        intake = ContributionIntake(of.key, of.part, draft, of.new_check)
        await stream_into(request, intake.feed, limit_bytes, of.at_once_bytes)
        if of.content_bytes <= of.at_once_bytes:
            header, digest = intake.finish(caller)
        else:
            header, digest = await asyncio.to_thread(intake.finish, caller)
        intake.check_commitment(header.commitment_a if server.side is Side.A else header.commitment_b)
        name = share_name()
        server.failpoints.reach(Point.BEFORE_UPLOAD_WRITTEN)
        wrapped_key = await asyncio.to_thread(draft.keep, name, intake.content_key)
        server.failpoints.reach(Point.AFTER_UPLOAD_WRITTEN)
    return commit_share(server, study, key, header, digest, name, wrapped_key, draft.tags())


def awaited(server: Server, study: StudyRecord, key: RoundKey, site: str) -> Awaited:
    """Return this side's part of a site's contribution, when the attempt takes it now. Raises: NotListed, WrongRound,
    MalformedMessage
    """
    record = round_of(server, study, key)
    _require_open(study, record)
    announcement = record.announcement.message
    if site not in expected_sites(server, announcement):
        raise NotListed(f"{site!r} is not listed for round {key.round}; it takes part when the requester lists it")
    part = expected(study.study, announcement, key.attempt, site, roster_of(server, record), server.side)
    check = content_check(server.ckks, announcement, part)
    return Awaited(server.keys.sealing, part, content_bytes(part.kind, part.length), check)


def share_name() -> str:
    """A name that no other share ever has: of two requests with one share, neither writes or deletes the other's."""
    return file_name("share", secrets.token_hex(16))


def commit_share(
    server: Server,
    study: StudyRecord,
    key: RoundKey,
    header: ContributionHeader,
    digest: str,
    name: str,
    wrapped_key: bytes | None,
    chunk_tags: bytes,
) -> Signed[Receipt]:
    """Commit the row of a share in the file ``name``; what has happened since the body began to come counts.

    ``digest``: the sealed message's; ``chunk_tags``: what the file is compared with whenever it is read.
    """
    site = header.site
    with server.store.alone(study.digest):
        known = server.store.contribution(key, site)
        if known is not None:
            if known.file != name:
                server.files.delete([name])
            return same_receipt(server, study, known, digest)
        try:
            record = round_of(server, study, key)
            _require_open(server.store.study(study.digest), record)
        except WrongRound:
            server.files.delete([name])
            raise
        message = Receipt(
            study_digest=key.study,
            round=key.round,
            attempt=key.attempt,
            site=site,
            side=server.side,
            body_digest=digest,
        )
        receipt = server.sign(message)
        state = record.begun.after(RoundEvent.CONTRIBUTION_STORED)
        server.store.add_contribution(
            ContributionRecord(key, site, header, digest, receipt, name, wrapped_key, chunk_tags),
            state,
        )
        server.failpoints.reach(Point.AFTER_RECEIPT_STORED)
        return receipt


def same_receipt(server: Server, study: StudyRecord, known: ContributionRecord, digest: str) -> Signed[Receipt]:
    """Return the receipt of the stored bytes. Raises: ConflictingMessage, for others"""
    if known.body_digest == digest:
        return known.receipt
    error = ConflictingMessage(
        f"the contribution of {known.site!r} to round {known.key.round}, attempt {known.key.attempt} came before with "
        "other bytes; the first one stands: send those bytes again, or none"
    )
    raise refuse(server, study.digest, known.site, error)


def _require_open(study: StudyRecord, record: RoundRecord) -> None:
    if study.state.ended:
        raise WrongRound(f"the study is {study.state}: {study.reason}")
    if record.outcome is not None:
        raise WrongRound(f"round {record.key.round} is being closed without a release; wait for the next one")
    record.begun.after(RoundEvent.CONTRIBUTION_STORED)


def absent_sites(server: Server, record: RoundRecord) -> frozenset[str]:
    """Listed sites that have declined the round at this server, or that a change of the roster has removed."""
    topic = str(Topic(LetterKind.DECLINE, record.key.round))
    declined = {mail.sender for mail in server.store.mail_of(record.key.study, [topic])}
    present = {party.name for party in server.roster.contributors} - declined
    return frozenset(record.announcement.message.listed) - present


def awaited_sites(server: Server, record: RoundRecord) -> frozenset[str]:
    """The sites without which no set is signed now: none any more once the round's time is over."""
    if server.clock() >= record.closes_at_s:
        return frozenset()
    return still_awaited(record.announcement.message, server.roster.requester, absent_sites(server, record))


def collected(server: Server, record: RoundRecord) -> CollectedSet:
    """Return what this server holds of an attempt, for its peer and for itself; reads every contribution's header."""
    announcement, store = record.announcement.message, server.store
    complete = awaited_sites(server, record) <= frozenset(store.contributors_of(record.key))
    places = {party.name: place for place, party in enumerate(roster_of(server, record).sites)}
    held = tuple(
        CollectedContribution(
            site=c.site,
            announcement_digest=c.header.announcement_digest,
            commitment_a=c.header.commitment_a,
            commitment_b=c.header.commitment_b,
        )
        for c in sorted(store.contributions(record.key), key=lambda c: places[c.site])
    )
    return CollectedSet(
        study_digest=record.key.study,
        round=record.key.round,
        attempt=record.key.attempt,
        announcement_digest=announcement.digest(),
        complete=complete,
        contributions=held,
    )
