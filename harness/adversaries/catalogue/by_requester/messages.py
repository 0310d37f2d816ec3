"""Announcements, queries and release sets that servers refuse, of a requester or of a site that plays it."""

from __future__ import annotations

from typing import Final

from harness.adversaries.catalogue.attack import Attack, Party, passes
from harness.adversaries.catalogue.refused import Refused, Row, Words
from harness.adversaries.hostile import requests as sent
from harness.adversaries.hostile import told
from harness.adversaries.hostile.between import site_as_peer
from harness.adversaries.scripted_rounds import LAST, SITES, SMALL, STRANGER, VICTIM, Phase
from protocol.errors import ErrorCode as E
from protocol.errors import MoietyError
from protocol.parameters import Needs
from protocol.rounds.side_b import Reply
from protocol.sharing import Side
from protocol.wire import paths
from protocol.wire.messages import Message, QueryHeader, Signed

_COLLECT: Final = "servers.rounds.collect."
_CHOOSE: Final = "servers.rounds.release.answer"


def _unsigned(signed: Signed[Message], *_: object) -> Message:
    return signed.message


def _keeps(*_: object) -> Reply:
    return Reply.KEEP


def _any_queries(expected: object, raw: bytes) -> QueryHeader:
    return QueryHeader.parse(raw)


def _announcements_out_of_turn() -> Refused:
    settled = Phase.SETTLED
    return Refused(
        Words(
            "announcements-out-of-turn",
            Party.REQUESTER,
            "announces a round twice, too early, for sites of its own making, or for fewer than the study's least "
            "number",
            "one announcement per round, checked against study and roster",
        ),
        {f"{_COLLECT}opens_round": lambda told, last, *_: last is None or last.progress.final},
        (
            Row(
                "another announcement of this round",
                told.announced(model_digest="22" * 32),
                409,
                E.CONFLICTING_MESSAGE,
                recorded=True,
            ),
            Row("of a later round", told.announced(round=10**5), 409, E.WRONG_ROUND, settled),
            Row(
                "names unknown sites",
                told.announced(listed=(*SITES[1:], "nobody")),
                400,
                E.MALFORMED_MESSAGE,
                settled,
                says="nobody",
            ),
            Row(
                "below the study's least number",
                told.announced(least_contributors=2),
                400,
                E.MALFORMED_MESSAGE,
                settled,
                says="below the study's 3",
            ),
            Row("fewer sites than it promises", told.too_few_listed, 400, E.MALFORMED_MESSAGE, settled),
        ),
    )


def _announcements_that_open_more() -> Refused:
    settled = Phase.SETTLED
    return Refused(
        Words(
            "announcements-that-open-more",
            Party.REQUESTER,
            "announces rounds that open more than the study's rule needs, never close, or are another study's",
            "what a round may open, and how long it may last, follows from the study, which all sites have read",
        ),
        {f"{_COLLECT}check_said": lambda *_: None},
        (
            Row("of another study", told.announced(study_digest="00" * 32), 409, E.ANNOUNCEMENT_MISMATCH, settled),
            Row(
                "closes in centuries",
                told.announced(closes_at_s=10**10),
                400,
                E.MALFORMED_MESSAGE,
                settled,
                says="round_deadline_s",
            ),
            *(
                Row(f"opens {opens.value}", told.announced(opens=opens), 400, E.MALFORMED_MESSAGE, settled)
                for opens in (Needs.PAIRS, Needs.NORMS, Needs.INNER_PRODUCTS)
            ),
        ),
    )


def _messages_in_the_requesters_place() -> Refused:
    settled = Phase.SETTLED
    return Refused(
        Words(
            "messages-in-the-requesters-place",
            Party.SITE,
            "announces, asks, releases and says that others are ready, as if it were the requester or them",
            "the requester's own signature inside its messages, and who may call what",
        ),
        {f"{_COLLECT}require_signatures": _unsigned, "servers.rounds.release.require_signatures": _unsigned},
        (
            Row("announcement by a site", told.announced_by_a_site, 401, E.BAD_SIGNATURE, settled),
            Row("ready for somebody else", told.ready_for_somebody_else, 403, E.NOT_LISTED),
            Row("queries of a site", told.queries(sender=VICTIM), 403, E.NOT_LISTED, Phase.LOCKED),
            Row("a site as the other server", site_as_peer, 403, E.NOT_LISTED),
            Row("release by a site", told.released(signer=VICTIM), 401, E.BAD_SIGNATURE, Phase.MEASURED),
        ),
    )


def _messages_that_do_not_parse() -> Refused:
    return Refused(
        Words(
            "messages-that-do-not-parse",
            Party.SITE,
            "sends what is no JSON, another kind of message, five megabytes, another version's, or asks for "
            "studies that are not there",
            "messages are parsed strictly, below a length, in one version",
        ),
        {"servers.routes.rounds.Signed": _Anything},
        (
            Row(
                "malformed JSON",
                told.post(paths.ANNOUNCEMENT, b'{"message":'),
                400,
                E.MALFORMED_MESSAGE,
                says="JSON",
            ),
            Row("JSON of another kind", told.post(paths.ANNOUNCEMENT, b"[1, 2]"), 400, E.MALFORMED_MESSAGE),
            Row("five megabytes", told.post(paths.ANNOUNCEMENT, b" " * 5 * 2**20), 413, E.TOO_LARGE),
            Row("another version", told.wrong_version_of_a_study, 400, E.OTHER_VERSION, says=told.NO_VERSION),
            Row("unknown study", sent.unknown_study, 404, E.UNKNOWN_STUDY, says="elsewhere"),
        ),
    )


def _studies() -> Refused:
    return Refused(
        Words(
            "studies-with-a-dealer",
            Party.REQUESTER,
            "creates a study whose correlations a dealer makes, one of another roster, or has a site create one",
            "servers make their correlations by oblivious transfer alone, for the roster that all have",
        ),
        {"servers.studies._require_own_correlations": passes},
        (
            Row("a dealer's correlations", told.study_with(correlation_source="dealer"), 400, E.MALFORMED_MESSAGE),
            Row("another roster", told.study_with(roster_digest="00" * 32), 409, E.ANNOUNCEMENT_MISMATCH),
            Row("created by a site", told.study_with(signer=VICTIM), 403, E.NOT_LISTED),
        ),
    )


def _announcements() -> tuple[Refused, ...]:
    return (
        _announcements_out_of_turn(),
        _announcements_that_open_more(),
        _messages_in_the_requesters_place(),
        _messages_that_do_not_parse(),
    )


class _Anything:
    """What does not parse is handed on as it came: the first use of it fails, by an error of the server's own."""

    def __init__(self, kind: type[Message]) -> None:
        self._kind = kind

    def __class_getitem__(cls, kind: type[Message]) -> _Anything:
        return cls(kind)

    def parse(self, data: bytes) -> object:
        try:
            return Signed[self._kind].parse(data)  # type: ignore[name-defined]  # which message is said at run time
        except MoietyError:
            return data


def _queries() -> Refused:
    locked = Phase.LOCKED
    return Refused(
        Words(
            "queries-of-its-own-choice",
            Party.REQUESTER,
            "asks for one site alone, for sites outside the set, under another challenge, twice, or before the lock",
            "queries name the whole agreed set under the signed challenge, once per attempt",
        ),
        {"protocol.bodies.query.Queries.require": _any_queries},
        (
            Row("wrong length", told.queries(length=SMALL + 1), 400, E.MALFORMED_MESSAGE, locked, says="length"),
            Row("cut short", told.queries(short_by=8), 400, E.MALFORMED_MESSAGE, locked, says="bytes"),
            Row("sites not in the set", told.queries(targets=(STRANGER, *SITES[2:])), 400, E.MALFORMED_MESSAGE, locked),
            Row("one site only", told.queries(targets=(VICTIM,)), 400, E.MALFORMED_MESSAGE, locked),
            Row("another challenge", told.queries(transcript_digest="00" * 32), 409, E.TRANSCRIPT_MISMATCH, locked),
            Row("for the other side", told.queries(side=Side.A), 400, E.MALFORMED_MESSAGE, locked),
            Row("before the lock", told.post(paths.QUERIES, b"x"), 409, E.WRONG_ROUND),
            Row("other ones, later", told.queries(), 409, E.CONFLICTING_MESSAGE, Phase.MEASURED, recorded=True),
        ),
    )


def _release_of_two() -> Refused:
    measured = Phase.MEASURED
    return Refused(
        Words(
            "release-of-two",
            Party.REQUESTER,
            "releases the sum of two contributors, or of sites that are not in the agreed set, or without itself",
            "one release set per round, over at least the announced number of agreed sites",
        ),
        {_CHOOSE: _keeps},
        (
            Row(
                "below the announced number",
                told.released(*SITES[:3]),
                400,
                E.MALFORMED_MESSAGE,
                measured,
                says="at least 3",
            ),
            Row("beyond the agreed set", told.released(*SITES, STRANGER), 400, E.MALFORMED_MESSAGE, measured),
            Row("a site twice", told.released(*SITES, LAST), 400, E.MALFORMED_MESSAGE, measured),
            Row("without the requester", told.released(*SITES[1:]), 400, E.MALFORMED_MESSAGE, measured),
            Row(
                "for another agreed set",
                told.released(agreed_set_digest="00" * 32),
                409,
                E.ANNOUNCEMENT_MISMATCH,
                measured,
            ),
            Row("before the opening", told.released(), 409, E.WRONG_ROUND, Phase.LOCKED),
        ),
    )


def _release_twice() -> Refused:
    released = Phase.RELEASED
    return Refused(
        Words(
            "release-twice",
            Party.REQUESTER,
            "releases a second sum, without one site, after the first, or again an older round",
            "one release set per round",
        ),
        {_CHOOSE: _keeps},
        (
            Row("at server A", told.released(*SITES[:4]), 409, E.CONFLICTING_MESSAGE, released, recorded=True),
            Row(
                "at server B",
                told.released(*SITES[:4], side=Side.B),
                409,
                E.CONFLICTING_MESSAGE,
                released,
                recorded=True,
            ),
            Row("of an older round", told.next_round_with_an_old_release, 409, E.WRONG_ROUND),
        ),
    )


def _output_for_an_outsider() -> Refused:
    released = Phase.RELEASED
    return Refused(
        Words(
            "output-for-an-outsider",
            Party.SITE,
            "fetches the sum of a round that did not list it",
            "the list of the round",
        ),
        {"servers.rounds.release._listed_now": lambda *_: True},
        (Row("not listed", told.output_for_an_outsider, 403, E.NOT_LISTED, released),),
    )


def _releases() -> tuple[Refused, ...]:
    return (
        _release_of_two(),
        _release_twice(),
        _output_for_an_outsider(),
    )


def hostile_messages() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return (_studies(), *_announcements(), _queries(), *_releases())
