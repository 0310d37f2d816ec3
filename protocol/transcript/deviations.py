"""Find deviations by signed messages alone (docs/protocol.md 15).

A deviation is two messages of one signer where the protocol allows one, or one that says what nobody signs who follows
the protocol. A signature that is missing or wrong proves nothing about anybody: it is listed, and not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from protocol.arithmetic.ring import octets
from protocol.errors import MalformedMessage, MoietyError
from protocol.release import mask_source, masking_side
from protocol.sharing import ChunkSource, Side
from protocol.tags.halves import VectorDigest, mask_digest
from protocol.tags.keys import attempt_key, require_seed, shown_seed
from protocol.tags.sums import errors_of
from protocol.tags.verdicts import contradicted, require_judged, wrong_tags
from protocol.transcript.kept import RoundTranscript
from protocol.wire.authentic import check_signature
from protocol.wire.message import Message
from protocol.wire.messages import (
    AgreedSet,
    Announcement,
    ChallengeTranscript,
    Go,
    HalvesChecked,
    OutputCommitment,
    Party,
    ReleaseSet,
    Roster,
    RoundOutcome,
    RoundState,
    Signed,
    SumRelease,
    TagCheck,
    TagsFailed,
    TagShares,
)

_CHUNK: Final = 1 << 16
ReadVector: TypeAlias = Callable[[RoundTranscript], tuple[int, ChunkSource]]
"""Length and content of the masked vector that was kept beside a transcript."""
_Signed: TypeAlias = Mapping[tuple[str, Message], int]
"""Who validly signed what, and in which round."""
_PLACES: Final[Mapping[type[Message], tuple[str, ...]]] = {
    Announcement: ("round",),
    AgreedSet: ("round", "attempt"),
    ChallengeTranscript: ("agreed_set_digest",),
    ReleaseSet: ("round",),
    SumRelease: ("round",),
    RoundOutcome: ("round", "attempt"),
    OutputCommitment: ("round", "attempt", "side"),
    TagCheck: ("round", "attempt", "side"),
    TagShares: ("round", "attempt", "side"),
    Go: ("round", "attempt"),
    TagsFailed: ("round", "attempt"),
}
"""Of messages that agree in these fields a party signs one; go and its opposite share their place."""
_ONE_WORD: Final[Mapping[type[Message], type[Message]]] = {Go: HalvesChecked, TagsFailed: HalvesChecked}


@dataclass(frozen=True)
class Deviation:
    """One deviation in one round. ``parties`` are several where the messages leave open which of them it was."""

    round: int
    parties: tuple[str, ...]
    what: str


@dataclass(frozen=True)
class Findings:
    """``unproven`` are messages without a valid signature, which say nothing about anybody."""

    deviations: tuple[Deviation, ...]
    unproven: tuple[str, ...]
    looked_at: int


def findings(rounds: Sequence[RoundTranscript], roster: Roster, vector: ReadVector | None = None) -> Findings:
    """Find the deviations that transcripts of one study show, of one site or of several together.

    ``vector`` reads the masked vector that was kept of a sum with wrong tags.

    Raises: MalformedMessage, when that vector is not one
    """
    parties = {party.name: party for party in (*roster.sites, roster.operator_a, roster.operator_b)}
    signed: dict[tuple[str, Message], int] = {}
    unproven = []
    for one in rounds:
        for message, signer, valid in _signatures(one, parties):
            if valid:
                signed.setdefault((signer, message), one.round)
            else:
                unproven.append(f"round {one.round}: {message.KIND} has no valid signature of {signer}")
    found = [*_said_twice(signed), *_strangers(signed), *_two_ends(signed)]
    for one in rounds:
        found += [*_words_about_tags(_proven(one, parties), roster), *_altered(_proven(one, parties), roster, vector)]
    return Findings(tuple(dict.fromkeys(found)), tuple(dict.fromkeys(unproven)), len(signed))


# --- what is signed ---------------------------------------------------------------------------------------------------


def _signatures(one: RoundTranscript, parties: Mapping[str, Party]) -> Iterator[tuple[Message, str, bool]]:
    for signed in _messages(one):
        for signature in signed.signatures:
            yield signed.message, signature.signer, _valid(signed, signature.signer, parties)


def _messages(one: RoundTranscript) -> Iterator[Signed[Message]]:
    for field in type(one).model_fields:
        value = getattr(one, field)
        if isinstance(value, tuple):
            yield from value


def _proven(one: RoundTranscript, parties: Mapping[str, Party]) -> RoundTranscript:
    """Without the messages of which a signature is wrong, or that have none."""
    kept = {}
    for field in type(one).model_fields:
        value = getattr(one, field)
        if isinstance(value, tuple):
            kept[field] = tuple(
                m for m in value if m.signatures and all(_valid(m, s.signer, parties) for s in m.signatures)
            )
    return one.model_copy(update=kept)


def _valid(signed: Signed[Message], signer: str, parties: Mapping[str, Party]) -> bool:
    signature, party = signed.signature_of(signer), parties.get(signer)
    if signature is None or party is None:
        return False
    try:
        check_signature(signed.message, signature, party)
    except MoietyError:
        return False
    return True


# --- one word in one place --------------------------------------------------------------------------------------------


def _said_twice(signed: _Signed) -> Iterator[Deviation]:
    first: dict[tuple[object, ...], Message] = {}
    for (signer, message), number in signed.items():
        kind = _ONE_WORD.get(type(message), type(message))
        place = (signer, kind, *(getattr(message, field) for field in _PLACES[type(message)]))
        if first.setdefault(place, message) != message:
            yield Deviation(number, (signer,), f"signed two different messages where there is one: {message.KIND}")


# --- what nobody signs who follows the protocol -----------------------------------------------------------------------


def _strangers(signed: _Signed) -> Iterator[Deviation]:
    """A release set of sites that are not agreed on."""
    agreed = {message.digest(): message for _, message in signed if isinstance(message, AgreedSet)}
    for (signer, message), number in signed.items():
        if isinstance(message, ReleaseSet) and message.agreed_set_digest in agreed:
            found = sorted(set(message.sites) - set(agreed[message.agreed_set_digest].sites))
            if found:
                yield Deviation(number, (signer,), f"signed a release set with {found}, who are not in the agreed set")


def _two_ends(signed: _Signed) -> Iterator[Deviation]:
    """The end of a round without a sum, and its sum."""
    sums = {(signer, number) for (signer, message), number in signed.items() if isinstance(message, SumRelease)}
    for (signer, message), number in signed.items():
        over = isinstance(message, RoundOutcome) and message.outcome is not RoundState.BURNT
        if over and (signer, number) in sums:
            yield Deviation(number, (signer,), "signed that the round ended without a sum, and its sum")


def _words_about_tags(one: RoundTranscript, roster: Roster) -> Iterator[Deviation]:
    """Go over checks that do not add up to zero, or the opposite; shares of errors that are not those of the checks."""
    releases = {signed.message.digest(): signed.message for signed in one.release_sets}
    said: tuple[Signed[Go] | Signed[TagsFailed], ...] = (*one.goes, *one.tags_failed)
    for signed in said:
        release = releases.get(signed.message.release_digest)
        try:
            stated = None if release is None else _judged(signed, release, roster)
        except MoietyError as broken:
            yield Deviation(one.round, (roster.requester,), f"signed {signed.message.KIND} wrongly: {broken.detail}")
            continue
        if release is not None and isinstance(stated, TagsFailed):
            yield from _shares_of_errors(one, stated, release, roster)


def _judged(signed: Signed[Go] | Signed[TagsFailed], release: ReleaseSet, roster: Roster) -> Go | TagsFailed:
    return require_judged(cast(Signed[Go], signed), release, roster)


def _shares_of_errors(
    one: RoundTranscript, failed: TagsFailed, release: ReleaseSet, roster: Roster
) -> Iterator[Deviation]:
    of = {shares.message.side: shares for shares in one.tag_shares}
    if len(of) < len(Side):
        return
    try:
        wrong = wrong_tags(failed, release, (of[Side.A], of[Side.B]), roster)
    except MoietyError as broken:
        yield Deviation(
            one.round, _operators(roster), f"showed shares of errors that do not belong here: {broken.detail}"
        )
        return
    if wrong.server_lied:
        yield Deviation(
            one.round,
            _operators(roster),
            "one of them signed a check, or shares of single sites' errors, that its half of the sum does not have",
        )
    else:
        yield Deviation(
            one.round,
            wrong.sites,
            "shared wrong tags, by both servers' shares; a server can make it look so",
        )


def _altered(one: RoundTranscript, roster: Roster, vector: ReadVector | None) -> Iterator[Deviation]:
    """Halves that were served and are those that were committed to, against the signed checks of them."""
    if one.altered is None or vector is None or not one.goes or not one.announcements:
        return
    go, announcement, mask_seed = (
        one.goes[0].message,
        one.announcements[0].message,
        bytes.fromhex(one.altered.mask_seed),
    )
    seed = require_seed(announcement, one.altered.tag_seed)
    length, masked = vector(one)
    masking = masking_side(one.round)
    digest = VectorDigest()
    for start in range(0, length, _CHUNK):
        digest.update(octets(masked(start, min(start + _CHUNK, length))))
    committed = {side: go.commitments[place].message.half_digest for place, side in enumerate(Side)}
    if seed is None or (committed[masking], committed[masking.other]) != (mask_digest(mask_seed), digest.hexdigest()):
        raise MalformedMessage(
            f"round {one.round}: the kept halves are not those that the servers committed to, so they prove nothing: "
            "take the folder of another site"
        )
    key = attempt_key(announcement, go.attempt, shown_seed(seed))
    of_mask, of_vector = errors_of(key, length, (mask_source(mask_seed), masked))
    for side in contradicted(go, of_mask, of_vector):
        operator = roster.operator(side).name
        yield Deviation(one.round, (operator,), "signed a check that is not that of the half that it served")


def _operators(roster: Roster) -> tuple[str, str]:
    return roster.operator_a.name, roster.operator_b.name
