"""Studies on one server: created by the requester, joined by sites, watched by all, ended by the requester."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from host.audit_log import Action
from protocol.ckks.ciphertext import CkksParameters
from protocol.errors import (
    AnnouncementMismatch,
    ConfigurationError,
    ConflictingMessage,
    MalformedMessage,
    NotListed,
    RolledBack,
    UnknownStudy,
    WrongRound,
)
from protocol.messages.control import (
    MAX_CONTROL_BYTES,
    ListedStudy,
    PauseCause,
    PauseNotice,
    ReadyNotice,
    RoundState,
    RoundView,
    Signed,
    Study,
    StudyEnd,
    StudyIndex,
    StudyState,
    StudyView,
    require_signatures,
    signature_from,
)
from protocol.messages.paths import EVERY_SITE
from protocol.mpc.measurement import product_lengths
from protocol.ot.session import SITE_ELEMENTS
from protocol.rounds.states import RoundKey, StudyEvent, study_step
from protocol.rules.registry import require_sites, rule_for
from protocol.sharing import Side
from servers.ckks.process import require_tenseal
from servers.event_loop import wait_up_to
from servers.server import Server
from servers.store.cache import StudyPicture
from servers.store.records import A_NEW_STUDY, Refusal, RoundRecord, StudyRecord

_BOTH = 2
_ENDED_BY_OUTCOME: Final = frozenset({RoundState.SKIPPED, RoundState.RANKED, RoundState.CLOSED})
PAGE_BYTES: Final = MAX_CONTROL_BYTES // 4


def study_named(server: Server, name: str) -> StudyRecord:
    """Raises: UnknownStudy"""
    record = server.store.study_named(name)
    if record is None:
        raise UnknownStudy(f"this server has no study {name!r}; its requester must create it at both servers")
    return record


def going_study(server: Server, name: str) -> StudyRecord:
    """A study that can go on. Raises: UnknownStudy, RolledBack, WrongRound"""
    record = study_named(server, name)
    if record.stranded_by is not None and not record.state.ended:
        raise RolledBack(
            f"study {name!r} was under way when an older database of server {record.stranded_by!r} was put back; it "
            "does not go on: its requester cancels it (moiety study cancel) and creates it anew under another name"
        )
    if record.study.unsupported is not None and not record.state.ended:
        raise WrongRound(
            f"study {name!r} does not go on, its requester cancels it (moiety study cancel): {record.study.unsupported}"
        )
    return record


def refuse(server: Server, study: str, party: str, error: ConflictingMessage) -> ConflictingMessage:
    """Keep a record of a conflicting message; -> the error to raise."""
    server.store.add_refusal(Refusal(study, party, error.code, error.detail, server.clock()))
    return error


def create(server: Server, signed: Signed[Study]) -> Signed[Study]:
    """Countersign a study that the requester signed; the same again gets the same answer.

    Raises: BadSignature, MalformedMessage, AnnouncementMismatch, ConflictingMessage
    """
    study = require_signatures(signed, server.roster, [server.roster.requester])
    if study.roster_digest != server.chain.first_digest:
        raise AnnouncementMismatch(
            "the study pins another roster than this server's begins with; every party must have the "
            "same signed roster file"
        )
    _require_own_correlations(study)
    _require_rule(server, study)
    _require_products(server, study)
    with server.store.alone(A_NEW_STUDY):
        known = server.store.study_named(study.name)
        if known is not None:
            if known.study == study:
                return known.signed
            error = ConflictingMessage(f"a study named {study.name!r} exists with other content; choose another name")
            raise refuse(server, known.digest, server.roster.requester, error)
        if study.unsupported is not None:
            raise MalformedMessage(study.unsupported)
        server.require_taking()
        own = signature_from(signed, server.roster.requester)
        countersigned = server.countersign(Signed[Study](message=study, signatures=(own,)))
        server.audit.add(Action.STUDY_REGISTERED, study=study.name, study_digest=study.digest())
        server.store.add_study(StudyRecord(study.digest(), countersigned, StudyState.OPEN, reason="", cursor=1))
        return countersigned


def _require_own_correlations(study: Study) -> None:
    """A dealer and one server have every sketch; dealers are for simulations. Raises: MalformedMessage"""
    if study.correlation_source == "dealer":
        raise MalformedMessage(
            "correlation_source 'dealer': this server makes its correlations by oblivious transfer and no dealer "
            "service is configured; use 'ot'"
        )


def _require_rule(server: Server, study: Study) -> None:
    contributors = [party.name for party in server.roster.contributors]
    try:
        rule_for(study.rule, batch_size=study.training.batch_size, grid=study.parameters.weight_grid)
        require_sites(study.rule, contributors, study.parameters.least_contributors)
        if study.protection.plan.keyed:
            CkksParameters().require_sites(len(server.roster.sites))
            if server.side is Side.A:
                require_tenseal()
    except ConfigurationError as error:
        raise MalformedMessage(error.detail) from None


def _require_products(server: Server, study: Study) -> None:
    """One site's products fit into one batch of correlations, even the last one's of a full roster."""
    sites, sketch = len(server.roster.sites), study.parameters.sketch_length
    opened = (study.rule.needs, study.rule.name.declared.measures)
    found = {one: sum(product_lengths(one, sites - 1, False, study.parameters)) for one in opened}
    most, needed = max(found.items(), key=lambda one: one[1])
    if needed > SITE_ELEMENTS:
        raise MalformedMessage(
            f"rule {study.rule.name.value!r} opens {most.value}: with {sites} sites and sketch_length "
            f"{sketch} a site's products take {needed} elements, the servers allow {SITE_ELEMENTS}; "
            "take a shorter sketch or fewer sites"
        )


async def studies_after(server: Server, name: str, known: str, wait_s: float) -> StudyIndex:
    """The next studies by name, in pages that a control message holds; every caller is in all: one roster per server.

    ``known`` is the digest of the whole index that the caller has: while it is this one the answer waits, at most
    ``wait_s``, and then says no more than that.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + min(wait_s, server.settings.limits.long_poll_s)
    while True:
        change = server.changes.next(A_NEW_STUDY)
        whole = _index(server)
        if not known or whole.digest() != known:
            return _page(whole, name)
        if not await wait_up_to(change, until - clock()):
            return StudyIndex(studies=(), unchanged=True, roster_changes=whole.roster_changes)


def _index(server: Server) -> StudyIndex:
    listed = tuple(ListedStudy(name=n, study_digest=d) for n, d in server.store.study_digests())
    return StudyIndex(studies=listed, roster_changes=server.chain.number)


def _page(whole: StudyIndex, after: str) -> StudyIndex:
    page, size = list[ListedStudy](), 0
    for listed in whole.studies:
        if listed.name <= after:
            continue
        size += len(listed.canonical())
        if page and size > PAGE_BYTES:
            return StudyIndex(studies=tuple(page), more=True, roster_changes=whole.roster_changes)
        page.append(listed)
    return StudyIndex(studies=tuple(page), roster_changes=whole.roster_changes)


def note_ready(server: Server, record: StudyRecord, caller: str, notice: ReadyNotice) -> None:
    """Raises: NotListed, AnnouncementMismatch, WrongRound"""
    if notice.site != caller:
        raise NotListed(f"the notice names {notice.site!r}, the request is signed by {caller!r}")
    if notice.study_digest != record.digest:
        raise AnnouncementMismatch("the notice is for a study with another digest")
    if record.state.ended:
        raise WrongRound(f"the study is {record.state}; no site can join any more")
    with server.store.alone(record.digest):
        server.store.add_ready(record.digest, caller)


def end(server: Server, record: StudyRecord, signed: Signed[StudyEnd]) -> Signed[StudyEnd]:
    """The requester ends the study; shares of an unfinished round are deleted, and a sum that was not served.

    Raises: BadSignature, AnnouncementMismatch, ConflictingMessage
    """
    message = require_signatures(signed, server.roster, [server.roster.requester])
    if message.study_digest != record.digest:
        raise AnnouncementMismatch("the end is for a study with another digest")
    with server.store.alone(record.digest):
        record = server.store.study(record.digest)
        if record.end is not None and record.end.message != message:
            error = ConflictingMessage(f"the study ended as {record.state}: {record.reason}")
            raise refuse(server, record.digest, server.roster.requester, error)
        if record.end is None:
            state = study_step(record.state, StudyEvent(message.state.value))
            ended = f"{message.state.value}: {message.reason}" if message.reason else message.state.value
            server.audit.add(Action.STUDY_ENDED, ended, study=record.name, study_digest=record.digest)
            record = server.store.change_study(
                record.digest, lambda r: replace(r, state=state, reason=message.reason, end=signed)
            )
        forget_unfinished(server, record.digest)
        return record.end or signed


def forget_unfinished(server: Server, study: str) -> None:
    """Shares of a study that has ended go, its query and a sum that was not served; done before, nothing is left to do.

    Repeated until it went well, since the end is stored before. Raises: Unavailable, OSError
    """
    server.uploads.keep_only(study, None)
    current = server.store.current_round(study)
    if current is None:
        return
    server.files.delete(server.store.forget_share_files(study, before_round=current.key.round + 1))
    server.shares.forget(study)
    if current.state is RoundState.COMMITTED and current.output_file is not None:
        server.store.change_round(current.key, lambda r: replace(r, output_file=None))
        server.files.delete([current.output_file])


async def watch(server: Server, record: StudyRecord, caller: str, after: int, wait_s: float) -> StudyView:
    """The caller's view; waits until it differs from what it was at cursor ``after``, at most ``wait_s``.

    Most changes, another site's contribution for one, do not show in a caller's view and do not wake it.
    """
    change = server.changes.next_for(record.digest, caller)
    shown = view(server, record, caller)
    # Read again after ``shown`` was made: a change that is in it must not be waited for.
    record = server.store.study(record.digest)
    if record.cursor != after:
        return view(server, record, caller)
    clock = asyncio.get_running_loop().time
    until = clock() + min(wait_s, server.settings.limits.long_poll_s)
    while await wait_up_to(change, until - clock()):
        change = server.changes.next_for(record.digest, caller)
        now = view(server, server.store.study(record.digest), caller)
        if now.model_copy(update={"cursor": after}) != shown:
            return now
    return view(server, server.store.study(record.digest), caller)


async def watch_news(server: Server, record: StudyRecord, caller: str, known: str, wait_s: float) -> StudyView | None:
    """The caller's view once there are other news in it than ``known``; None if there are none in ``wait_s``."""
    digest, clock = record.digest, asyncio.get_running_loop().time
    until = clock() + min(wait_s, server.settings.limits.long_poll_s)
    while True:
        change = server.changes.next_for(digest, caller)
        shown = _picture_now(server, digest).shown_to(caller)
        if shown.news != known:
            return shown.view
        if not await wait_up_to(change, until - clock()):
            return None


def view(server: Server, record: StudyRecord, caller: str) -> StudyView:
    picture = server.pictures.get(record.digest)
    if picture is None or picture.everybody.cursor != record.cursor:
        picture = server.pictures[record.digest] = _picture(server, record)
    return picture.shown_to(caller).view


def _picture_now(server: Server, digest: str) -> StudyPicture:
    """Read by the first who asks after a change, and not by everybody whom it wakes."""
    picture = server.pictures.get(digest)
    if picture is None or picture.number != server.changes.number(digest):
        picture = server.pictures[digest] = _picture(server, server.store.study(digest))
    return picture


def _picture(server: Server, record: StudyRecord) -> StudyPicture:
    """Everything that views of a study are made of, read once a change and not once a caller."""
    number, current = server.changes.number(record.digest), server.store.current_round(record.digest)
    everybody = StudyView(
        study=record.name,
        study_digest=record.digest,
        end=record.end,
        pause=_pause(record),
        cursor=record.cursor,
        ready=server.store.ready_sites(record.digest),
        mail=(),
        current=None if current is None else _round_view(server, current),
        roster_changes=server.chain.number,
    )
    recipients = (EVERY_SITE, *(site.name for site in server.roster.sites))
    mail = server.store.mail_for(record.digest, recipients)
    return StudyPicture(everybody, mail, number)


def _pause(record: StudyRecord) -> PauseNotice | None:
    if record.stranded_by is not None and not record.state.ended:
        return PauseNotice(cause=PauseCause.SERVER_RESTORED, skips=1)
    if record.state is not StudyState.PAUSED:
        return None
    if record.absent_in_a_row == 0:
        return PauseNotice(cause=PauseCause.REQUESTER_SILENT, skips=1)
    return PauseNotice(cause=PauseCause.REQUESTER_AWAY, skips=record.absent_in_a_row)


def _round_view(server: Server, record: RoundRecord) -> RoundView:
    agreed, ended = record.agreed_set, record.sum_release
    outcome = record.outcome if record.state in _ENDED_BY_OUTCOME else None
    if outcome is None and record.key.attempt > 1:
        before = server.store.round(RoundKey(record.key.study, record.key.round, record.key.attempt - 1))
        outcome = None if before is None else before.outcome
    return RoundView(
        round=record.key.round,
        attempt=record.key.attempt,
        state=record.state,
        announcement=record.announcement,
        agreed_set=agreed if agreed is not None and len(agreed.signatures) == _BOTH else None,
        transcript=record.transcript,
        release_set=record.release_set,
        sum_release=ended if ended is not None and len(ended.signatures) == _BOTH else None,
        outcome=outcome,
        commitment=record.commitment,
        go=record.go if record.state is RoundState.RELEASED else None,
    )
