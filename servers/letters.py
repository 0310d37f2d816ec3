"""Letters that a study calls for now, and those that nobody reads any more (docs/protocol.md 3, 4, 9).

A site can leave no more here than was announced: one decline per round that lists it, one refusal, and the requester
one weight list per site and round, one welcome per site, and the checkpoints that those welcomes name; a site has one
attestation here, its newest. So neither a disk nor a view grows by what one party sends.
"""

from __future__ import annotations

from typing import Final

from protocol.errors import NotListed, WrongRound
from protocol.messages.control import RoundState
from protocol.messages.letter import LetterKind, Topic, parse_topic
from protocol.messages.paths import EVERY_SITE
from servers.server import Server
from servers.store.records import MailRecord
from servers.store.study_records import RoundRecord, StudyRecord

_ROUNDS_KEPT: Final = 2
"""Letters of a round are read while it is the current one; those of the round before it may still be under way."""


def require_announced(server: Server, study: StudyRecord, topic: Topic, sender: str, recipient: str) -> None:
    """Return if the study calls for this letter: its round is announced and lists the site, its model can be there.

    A weight list comes before its announcement, so that no site hears of a round whose list it cannot read: those of
    the next round are taken too.

    Raises: WrongRound, NotListed
    """
    if study.state.ended:
        raise WrongRound(f"the study is {study.state}; nobody reads letters about it any more")
    current = server.store.current_round(study.digest)
    number = 0 if current is None else current.key.round
    if topic.kind is LetterKind.WEIGHTS:
        if topic.number not in (number, number + 1) or topic.number == 0:
            raise _not_now(topic, f"rounds {number} and {number + 1}" if number else "round 1")
        if topic.number == number:
            _require_listed(current, recipient, topic)
    elif topic.kind is LetterKind.DECLINE:
        if current is None or topic.number != number:
            raise _not_now(topic, f"round {number}" if number else "no round yet")
        _require_listed(current, sender, topic)
    elif not topic.kind.of_a_round and topic.number > _newest_model(current):
        raise _not_now(topic, f"models up to {_newest_model(current)}")
    elif topic.kind is LetterKind.ATTESTED and any(
        of.number > topic.number for _, of in _attested(server, study, sender)
    ):
        raise _not_now(topic, "a newer model, which this site has attested")


def superseded(server: Server, study: StudyRecord, topic: Topic, sender: str, recipient: str) -> list[MailRecord]:
    """The letters that this one leaves without a reader."""
    if topic.kind is LetterKind.WEIGHTS:
        return _of_rounds_before(server, study, topic.number - _ROUNDS_KEPT + 1)
    if topic.kind is LetterKind.WELCOME:
        return [mail for mail, of in _kept(server, study, recipient, LetterKind.WELCOME) if of.number < topic.number]
    if topic.kind is LetterKind.CHECKPOINT:
        return _checkpoints_nobody_awaits(server, study, topic.number)
    if topic.kind is LetterKind.ATTESTED:
        return [mail for mail, of in _attested(server, study, sender) if of.number < topic.number]
    return []


def forget_rounds_before(server: Server, study: StudyRecord, number: int) -> None:
    """Delete what was written about rounds that round ``number``, now announced, leaves without a reader.

    A list that comes in time has done so already; a requester that leaves rounds without lists piles nothing up.
    """
    gone = _of_rounds_before(server, study, number - _ROUNDS_KEPT + 1)
    if gone:
        server.store.forget_mail(gone)
        server.files.delete([mail.file for mail in gone])


def _attested(server: Server, study: StudyRecord, sender: str) -> list[tuple[MailRecord, Topic]]:
    kept = _kept(server, study, server.roster.requester, LetterKind.ATTESTED)
    return [(mail, of) for mail, of in kept if mail.sender == sender]


def _of_rounds_before(server: Server, study: StudyRecord, number: int) -> list[MailRecord]:
    """Letters of the round that just became too old; those before it went when it came."""
    kinds = [kind for kind in LetterKind if kind.of_a_round]
    return server.store.mail_of(study.digest, [str(Topic(kind, number - 1)) for kind in kinds]) if number > 1 else []


def _checkpoints_nobody_awaits(server: Server, study: StudyRecord, newest: int) -> list[MailRecord]:
    """Older checkpoints that no site's newest welcome names."""
    sites = [site.name for site in server.roster.contributors]
    awaited = {of.number for site in sites for _, of in _kept(server, study, site, LetterKind.WELCOME)}
    kept = _kept(server, study, EVERY_SITE, LetterKind.CHECKPOINT)
    return [mail for mail, of in kept if of.number < newest and of.number not in awaited]


def _kept(server: Server, study: StudyRecord, recipient: str, kind: LetterKind) -> list[tuple[MailRecord, Topic]]:
    found = [(mail, parse_topic(mail.topic)) for mail in server.store.mail_for(study.digest, (recipient,))]
    return [(mail, topic) for mail, topic in found if topic.kind is kind]


def _newest_model(current: RoundRecord | None) -> int:
    """Every released round makes one model at most."""
    if current is None:
        return 0
    return current.key.round if current.state is RoundState.RELEASED else current.key.round - 1


def _require_listed(current: RoundRecord | None, site: str, topic: Topic) -> None:
    if current is None or site not in current.announcement.message.listed:
        raise NotListed(f"round {topic.number} does not list {site!r}: there is no letter {str(topic)!r} of it")


def _not_now(topic: Topic, allowed: str) -> WrongRound:
    return WrongRound(f"a letter {str(topic)!r} is not called for now: the study is at {allowed}")
