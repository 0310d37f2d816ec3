"""Records to rows and back; signed messages are kept as their canonical bytes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar, cast

from sqlalchemy import Row

from protocol.messages.control import (
    AgreedSet,
    Announcement,
    ChallengeTranscript,
    ContributedRound,
    ContributionHeader,
    Go,
    Message,
    OutputCommitment,
    QueryHeader,
    Receipt,
    ReleaseSet,
    RoundOutcome,
    RoundState,
    Signed,
    Study,
    StudyEnd,
    StudyState,
    SumRelease,
    TagCheck,
    TagsFailed,
)
from protocol.rounds.states import RoundKey
from servers.store.records import ContributionRecord, CorrelationUse, MailRecord
from servers.store.study_records import RoundRecord, StudyRecord

M = TypeVar("M", bound=Message)


def _bytes(message: Message | None) -> bytes | None:
    return None if message is None else message.canonical()


@lru_cache(maxsize=64)
def _parse(kind: type[Message], canonical: bytes) -> Message:
    """Every request reads its study and round: what was parsed once, and cannot be changed, is kept."""
    return kind.parse(canonical)


def _kept(kind: type[M], data: bytes) -> M:
    return cast(M, _parse(kind, bytes(data)))


def _parsed(kind: type[M], data: bytes | None) -> M | None:
    return None if data is None else _kept(kind, data)


def study_row(record: StudyRecord) -> dict[str, Any]:
    return {
        "digest": record.digest,
        "name": record.name,
        "signed": record.signed.canonical(),
        "state": record.state.value,
        "reason": record.reason,
        "cursor": record.cursor,
        "absent_in_a_row": record.absent_in_a_row,
        "end": _bytes(record.end),
        "stranded_by": record.stranded_by,
    }


def study_record(row: Row[Any]) -> StudyRecord:
    return StudyRecord(
        digest=row.digest,
        signed=_kept(Signed[Study], row.signed),
        state=StudyState(row.state),
        reason=row.reason,
        cursor=row.cursor,
        absent_in_a_row=row.absent_in_a_row,
        end=_parsed(Signed[StudyEnd], row.end),
        stranded_by=row.stranded_by,
    )


def round_row(record: RoundRecord) -> dict[str, Any]:
    return {
        "study": record.key.study,
        "round": record.key.round,
        "attempt": record.key.attempt,
        "state": record.state.value,
        "announcement": record.announcement.canonical(),
        "closes_at_s": record.closes_at_s,
        "agreed_set": _bytes(record.agreed_set),
        "own_nonce": record.own_nonce,
        "peer_commitment": record.peer_commitment,
        "transcript": _bytes(record.transcript),
        "query_header": _bytes(record.query_header),
        "query_digest": record.query_digest,
        "query_file": record.query_file,
        "release_set": _bytes(record.release_set),
        "mask_seed": record.mask_seed,
        "output_file": record.output_file,
        "sum_release": _bytes(record.sum_release),
        "outcome": _bytes(record.outcome),
        "commitment": _bytes(record.commitment),
        "committed_at_s": record.committed_at_s,
        "tag_seed": record.tag_seed,
        "tag_check": _bytes(record.tag_check),
        "go": _bytes(record.go),
        "tags_failed": _bytes(record.tags_failed),
    }


def round_record(row: Row[Any]) -> RoundRecord:
    return RoundRecord(
        key=RoundKey(row.study, row.round, row.attempt),
        state=RoundState(row.state),
        announcement=_kept(Signed[Announcement], row.announcement),
        closes_at_s=row.closes_at_s,
        agreed_set=_parsed(Signed[AgreedSet], row.agreed_set),
        own_nonce=row.own_nonce,
        peer_commitment=row.peer_commitment,
        transcript=_parsed(Signed[ChallengeTranscript], row.transcript),
        query_header=_parsed(QueryHeader, row.query_header),
        query_digest=row.query_digest,
        query_file=row.query_file,
        release_set=_parsed(Signed[ReleaseSet], row.release_set),
        mask_seed=row.mask_seed,
        output_file=row.output_file,
        sum_release=_parsed(Signed[SumRelease], row.sum_release),
        outcome=_parsed(Signed[RoundOutcome], row.outcome),
        commitment=_parsed(Signed[OutputCommitment], row.commitment),
        committed_at_s=row.committed_at_s,
        tag_seed=row.tag_seed,
        tag_check=_parsed(Signed[TagCheck], row.tag_check),
        go=_parsed(Signed[Go], row.go),
        tags_failed=_parsed(Signed[TagsFailed], row.tags_failed),
    )


def contribution_row(record: ContributionRecord) -> dict[str, Any]:
    return {
        "study": record.key.study,
        "round": record.key.round,
        "attempt": record.key.attempt,
        "site": record.site,
        "header": record.header.canonical(),
        "body_digest": record.body_digest,
        "receipt": record.receipt.canonical(),
        "file": record.file,
        "wrapped_key": record.wrapped_key,
        "chunk_tags": record.chunk_tags,
    }


def contribution_record(row: Row[Any]) -> ContributionRecord:
    return ContributionRecord(
        key=RoundKey(row.study, row.round, row.attempt),
        site=row.site,
        header=ContributionHeader.parse(row.header),
        body_digest=row.body_digest,
        receipt=Signed[Receipt].parse(row.receipt),
        file=row.file,
        wrapped_key=row.wrapped_key,
        chunk_tags=row.chunk_tags,
    )


def contributed_round(row: Row[Any]) -> ContributedRound:
    return ContributedRound(
        study=row.name, study_digest=row.study, round=row.round, attempt=row.attempt, body_digest=row.body_digest
    )


def mail_record(row: Row[Any]) -> MailRecord:
    return MailRecord(row.study, row.sender, row.recipient, row.topic, row.body_digest, row.file)


def use_row(use: CorrelationUse) -> dict[str, Any]:
    return {
        "session": use.session,
        "batch": use.batch,
        "index": use.index,
        "study": use.key.study,
        "round": use.key.round,
        "attempt": use.key.attempt,
        "site": use.site,
    }
