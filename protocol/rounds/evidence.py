"""Evidence in signed messages: a released round, a site's transcript, deviations (docs/protocol.md 9, 11, 15).

Nothing in a transcript is secret from the study's parties: no weight, no update, nothing of what was opened.
``altered`` is there after a sum whose tags were wrong, and shows that sum to whoever reads it.

A deviation is two messages of one signer where the protocol allows one, or one that says what nobody signs who follows
the protocol. A signature that is missing or wrong proves nothing about anybody: it is listed, and not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

from protocol.arithmetic.ring import octets
from protocol.channel.message import Attempt, Digest, Message, PartyName, RoundNumber, Secret32, omitted
from protocol.errors import (
    AnnouncementMismatch,
    BadSignature,
    MalformedMessage,
    MoietyError,
    ProtocolViolation,
    TranscriptMismatch,
)
from protocol.messages.control import (
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
    RoundView,
    Signed,
    SumRelease,
    TagCheck,
    TagsFailed,
    TagShares,
    WeightList,
    check_signature,
    require_signatures,
)
from protocol.messages.purpose import RoundStep
from protocol.parameters import Record
from protocol.release import mask_source, masking_side
from protocol.sharing import ChunkSource, Side
from protocol.tags import (
    VectorDigest,
    attempt_key,
    contradicted,
    errors_of,
    mask_digest,
    require_judged,
    require_seed,
    shown_seed,
    wrong_tags,
)


class PastRelease(Message):
    """A released round with its evidence, for a site that did not see the release itself.

    The agreed set (both servers) names the announcement, the announcement the weight list; the release set carries
    the requester's signature. ``sum_release``: in a round of ciphertexts, both servers' signatures under the sum.
    """

    KIND: ClassVar[str] = "past_release"
    announcement: Announcement
    weight_list: WeightList
    agreed_set: Signed[AgreedSet]
    release_set: Signed[ReleaseSet]
    sum_release: Signed[SumRelease] | None = None
    go: Signed[Go] | None = omitted()


def check_release(past: PastRelease, roster: Roster, study_digest: str) -> None:
    """The evidence of a release of this study hangs together and carries everybody's signature.

    Raises: BadSignature, AnnouncementMismatch, ProtocolViolation
    """
    agreed = require_signatures(past.agreed_set, roster, roster.operators)
    release = require_signatures(past.release_set, roster, (roster.requester,))
    announcement = past.announcement
    if not announcement.purpose.plan.summed:
        does = announcement.purpose.plan.does
        raise ProtocolViolation(f"round {announcement.round} {does}; its vectors are never summed")
    if {announcement.study_digest, agreed.study_digest, release.study_digest} != {study_digest}:
        raise AnnouncementMismatch(f"round {announcement.round}: the release is of another study")
    if agreed.announcement_digest != announcement.digest():
        raise AnnouncementMismatch(f"round {announcement.round}: the agreed set is bound to another announcement")
    if past.weight_list.digest() != announcement.weight_list_digest:
        raise AnnouncementMismatch(f"round {announcement.round}: the weight list is not the announced one")
    if release.agreed_set_digest != agreed.digest() or (release.round, release.attempt) != (
        agreed.round,
        agreed.attempt,
    ):
        raise TranscriptMismatch(f"round {announcement.round}: the release set is for another agreed set")
    strangers = sorted(set(release.sites) - set(agreed.sites))
    if strangers or len(set(release.sites)) != len(release.sites):
        raise ProtocolViolation(f"round {announcement.round}: the release set names {strangers} or a site twice")
    left_out = [site for site in agreed.sites if site not in release.sites]
    if [site for site in left_out if site in release.failed_check] != list(release.failed_check):
        raise ProtocolViolation(
            f"round {announcement.round}: failed_check names {list(release.failed_check)}, left out were {left_out}"
        )
    if RoundStep.COUNTERSIGN in announcement.protection.plan.steps:
        require_sum_release(past, roster)
    if announcement.tagged:
        require_go(past, roster)
    if roster.requester not in release.sites or len(release.sites) - 1 < announcement.least_contributors:
        raise ProtocolViolation(
            f"round {announcement.round}: {len(release.sites)} sites were released, needed are the requester and "
            f"{announcement.least_contributors} contributors"
        )


def require_sum_release(past: PastRelease, roster: Roster) -> SumRelease:
    """Require both servers' signatures under the end of a round of ciphertexts: this release set, and the sum's digest.

    Raises: BadSignature, AnnouncementMismatch
    """
    number, release = past.announcement.round, past.release_set.message
    if past.sum_release is None:
        raise BadSignature(f"round {number}: its sum comes without both servers' signatures under it; it is not opened")
    ended = require_signatures(past.sum_release, roster, roster.operators)
    named = (ended.study_digest, ended.round, ended.attempt, ended.release_digest)
    if named != (release.study_digest, release.round, release.attempt, release.digest()):
        raise AnnouncementMismatch(f"round {number}: what both servers signed is the sum of another round or release")
    return ended


def require_go(past: PastRelease, roster: Roster) -> Go:
    """Require the go that lets servers serve a release with tags, and both servers' commitments to what they serve.

    Raises: BadSignature, AnnouncementMismatch, ProtocolViolation
    """
    if past.go is None:
        raise BadSignature(
            f"round {past.announcement.round}: its sum has tags and comes without the requester's go; it is not opened"
        )
    return require_judged(past.go, past.release_set.message, roster)


def sum_of_numerators(past: PastRelease, roster: Roster) -> int:
    """The released sites' weights times the grid, the requester's among them."""
    total, listed = past.weight_list.own_numerator, past.weight_list.numerators()
    for site in past.release_set.message.sites:
        if site == roster.requester:
            continue
        if site not in listed:
            raise ProtocolViolation(f"site {site!r} was released without a weight on the list")
        total += listed[site]
    return total


class AlteredSum(Record):
    """A served sum with wrong tags: the mask's seed, and the file of the masked vector beside this one.

    With the seed of the tags anybody can compute what each server should have signed.
    """

    tag_seed: Secret32
    mask_seed: Secret32
    vector_file: str


class RoundTranscript(Record):
    """Each message with the signatures that it had; one that both servers showed alike is kept once."""

    study_digest: Digest
    round: RoundNumber
    attempt: Attempt
    kept_by: PartyName
    announcements: tuple[Signed[Announcement], ...] = ()
    agreed_sets: tuple[Signed[AgreedSet], ...] = ()
    challenges: tuple[Signed[ChallengeTranscript], ...] = ()
    release_sets: tuple[Signed[ReleaseSet], ...] = ()
    sum_releases: tuple[Signed[SumRelease], ...] = ()
    outcomes: tuple[Signed[RoundOutcome], ...] = ()
    commitments: tuple[Signed[OutputCommitment], ...] = ()
    checks: tuple[Signed[TagCheck], ...] = ()
    goes: tuple[Signed[Go], ...] = ()
    tags_failed: tuple[Signed[TagsFailed], ...] = ()
    tag_shares: tuple[Signed[TagShares], ...] = ()
    altered: AlteredSum | None = omitted()


def shown(
    study_digest: str,
    kept_by: str,
    views: tuple[RoundView, RoundView],
    *,
    failed: Signed[TagsFailed] | None = None,
    shares: tuple[Signed[TagShares], ...] = (),
    go: Signed[Go] | None = None,
    altered: AlteredSum | None = None,
) -> RoundTranscript:
    """Return the record of an ended attempt: both servers' views, and what the requester alone has."""

    def both(name: str) -> Any:  # noqa: ANN401  # of one kind for each name
        found = (getattr(view, name) for view in views)
        return tuple(dict.fromkeys(one for one in found if one is not None))

    goes = tuple(dict.fromkeys((*both("go"), *(() if go is None else (go,)))))
    fails = () if failed is None else (failed,)
    judged = [one.message for one in (*goes, *fails)]
    return RoundTranscript(
        study_digest=study_digest,
        round=views[0].round,
        attempt=views[0].attempt,
        kept_by=kept_by,
        announcements=both("announcement"),
        agreed_sets=both("agreed_set"),
        challenges=both("transcript"),
        release_sets=both("release_set"),
        sum_releases=both("sum_release"),
        outcomes=both("outcome"),
        commitments=tuple(dict.fromkeys((*both("commitment"), *(c for one in judged for c in one.commitments)))),
        checks=tuple(dict.fromkeys(check for one in judged for check in one.checks)),
        goes=goes,
        tags_failed=fails,
        tag_shares=shares,
        altered=altered,
    )


_CHUNK: Final = 1 << 16
ReadVector: TypeAlias = Callable[[RoundTranscript], tuple[int, ChunkSource]]
"""Length and content of the masked vector that was kept beside a transcript."""
_Signed: TypeAlias = Mapping[tuple[str, Message], int]
"""Validly signed messages by signer, with their round."""
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
"""The fields in which messages agree of which a party signs one; go and its opposite share their place."""
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
    said: tuple[Signed[Any], ...] = (*one.goes, *one.tags_failed)
    for signed in said:
        release = releases.get(signed.message.release_digest)
        try:
            stated = None if release is None else require_judged(signed, release, roster)
        except MoietyError as broken:
            yield Deviation(one.round, (roster.requester,), f"signed {signed.message.KIND} wrongly: {broken.detail}")
            continue
        if release is not None and isinstance(stated, TagsFailed):
            yield from _shares_of_errors(one, stated, release, roster)


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
            one.round, roster.operators, f"showed shares of errors that do not belong here: {broken.detail}"
        )
        return
    if wrong.server_lied:
        yield Deviation(
            one.round,
            roster.operators,
            "one of them signed a check, or shares of single sites' errors, that its half of the sum does not have",
        )
    else:
        what = "shared wrong tags, by both servers' shares; a server can make it look so"
        yield Deviation(one.round, wrong.sites, what)


def _altered(one: RoundTranscript, roster: Roster, vector: ReadVector | None) -> Iterator[Deviation]:
    """Halves that were served and are those that were committed to, against the signed checks of them."""
    if one.altered is None or vector is None or not one.goes or not one.announcements:
        return
    go, announcement = one.goes[0].message, one.announcements[0].message
    mask_seed = bytes.fromhex(one.altered.mask_seed)
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
