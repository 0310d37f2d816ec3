"""Deviating parties are named by transcripts of rounds in which one party does otherwise; some prove nothing."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import numpy as np
import pytest

from harness.attack.scripted_agents import PARTIES, REQUESTER, ROSTER
from harness.attack.tagged_round import TaggedRound
from protocol.arithmetic.ring import Ring, from_bytes
from protocol.errors import MalformedMessage
from protocol.messages.control import (
    ChallengeTranscript,
    Go,
    Message,
    ReleaseSet,
    RoundState,
    RoundView,
    Signed,
    TagsFailed,
    TagShares,
    countersign,
    sign,
)
from protocol.messages.purpose import OutcomeCause
from protocol.release import masking_side
from protocol.rounds.evidence import AlteredSum, Deviation, RoundTranscript, findings, shown
from protocol.sharing import ChunkSource, Side
from protocol.tags import shares_of
from tests.kit.round_messages import outcome, sum_release

M = TypeVar("M", bound=Message)
A, B = ROSTER.operator_a.name, ROSTER.operator_b.name
OTHER = "cd" * 32


def by(name: str, message: M) -> Signed[M]:
    return sign(message, name, PARTIES.keys_of(name).signing)


def transcript(turn: TaggedRound, **changes: object) -> RoundTranscript:
    """A site's transcript of such a round, were it over."""
    said = turn.said
    fields: dict[str, Any] = {
        "study_digest": turn.study.digest(),
        "round": turn.number,
        "attempt": 1,
        "kept_by": "c1",
        "announcements": (by(REQUESTER, turn.announcement),),
        "agreed_sets": (turn.agreed_set,),
        "release_sets": (by(REQUESTER, turn.release),),
        "commitments": turn.commitments,
        "checks": turn.checks,
        "goes": (said,) if isinstance(said.message, Go) else (),
        "tags_failed": (said,) if isinstance(said.message, TagsFailed) else (),
    }
    return RoundTranscript(**{**fields, **changes})


def deviations(*rounds: RoundTranscript) -> tuple[Deviation, ...]:
    return findings(rounds, ROSTER).deviations


@pytest.mark.parametrize("number", [1, 2])
def test_nobody_deviates_in_an_honest_round(number: int) -> None:
    found = findings([transcript(TaggedRound(number=number))], ROSTER)
    assert (found.deviations, found.unproven) == ((), ())
    assert found.looked_at == 9


# --- one word in one place --------------------------------------------------------------------------------------------


def test_two_release_sets_are_the_requesters() -> None:
    turn = TaggedRound()
    fewer = turn.release.model_copy(update={"sites": turn.release.sites[:-1]})
    sets = (by(REQUESTER, turn.release), by(REQUESTER, fewer))
    (found,) = deviations(transcript(turn, release_sets=sets))
    assert found.parties == (REQUESTER,)
    assert "release_set" in found.what


def test_what_two_sites_were_told_differently_shows_in_both_together() -> None:
    turn = TaggedRound()
    told = transcript(turn)
    other = turn.commitments[1].message.model_copy(update={"half_digest": OTHER})
    elsewhere = transcript(turn, kept_by="c2", goes=(), commitments=(by(B, other),))
    assert deviations(told) == deviations(elsewhere) == ()
    (found,) = deviations(told, elsewhere)
    assert (found.parties, "output_commitment" in found.what) == ((B,), True)


def test_go_and_that_tags_failed_are_two_words() -> None:
    turn = TaggedRound()
    go = turn.said.message
    failed = by(REQUESTER, TagsFailed(**{name: getattr(go, name) for name in type(go).model_fields}))
    found = deviations(transcript(turn, tags_failed=(failed,)))
    assert {one.parties for one in found} == {(REQUESTER,)}
    assert any("two different messages" in one.what for one in found)
    assert any("add up to zero" in one.what for one in found)


def test_two_challenges_two_ends() -> None:
    turn = TaggedRound()
    toss = ChallengeTranscript(
        agreed_set_digest=turn.agreed_set.message.digest(),
        commitment_a=OTHER,
        nonce_b=OTHER,
        nonce_a=OTHER,
        challenge=OTHER,
    )
    again = toss.model_copy(update={"nonce_b": "ef" * 32})
    (found,) = deviations(transcript(turn, challenges=(by(B, toss), by(B, again))))
    assert (found.parties, "challenge" in found.what) == ((B,), True)
    skip = outcome(turn.study.digest(), cause=OutcomeCause.GO_MISSING)
    summed = sum_release(turn.release, OTHER)
    (found,) = deviations(transcript(turn, outcomes=(by(A, skip),), sum_releases=(by(A, summed),)))
    assert (found.parties, "and its sum" in found.what) == ((A,), True)
    assert deviations(transcript(turn, outcomes=(by(A, skip),), sum_releases=(by(B, summed),))) == ()


# --- what nobody signs ------------------------------------------------------------------------------------------------


def test_a_release_set_with_a_stranger() -> None:
    turn = TaggedRound()
    wider = turn.release.model_copy(update={"sites": (*turn.release.sites, "c7")})
    (found,) = deviations(transcript(turn, release_sets=(by(REQUESTER, wider),), goes=()))
    assert (found.parties, "'c7'" in found.what) == ((REQUESTER,), True)


class Altered(TaggedRound):
    """Server B adds to one coordinate; whether its check says so is the subclass's."""

    def summed(self, side: Side, own: Ring) -> Ring:
        own[3] += np.uint64(1000 * (side is Side.B))
        return own


class Forged(Altered):
    def checked(self, side: Side, errors: Ring) -> Ring:
        error = np.zeros(self.length, dtype=np.uint64)
        error[3] = 1000
        return errors - self.errors([error])[0] if side is Side.B else errors


class Goes(Altered):
    def judged(self, said: Go | TagsFailed) -> Go | TagsFailed:
        return Go(**{name: getattr(said, name) for name in type(said).model_fields})


def shares(turn: TaggedRound) -> tuple[Signed[TagShares], ...]:
    of = {side: shares_of(turn.release, side, turn.errors(turn.shares_at(side))) for side in Side}
    return tuple(by(ROSTER.operator(side).name, of[side]) for side in Side)


def test_go_over_checks_that_do_not_add_up_is_the_requesters() -> None:
    (found,) = deviations(transcript(Goes()))
    assert (found.parties, "add up to an error" in found.what) == ((REQUESTER,), True)


def test_checks_that_no_site_explains_are_one_servers_or_the_others() -> None:
    turn = Altered()
    (found,) = deviations(transcript(turn, tag_shares=shares(turn)))
    assert found.parties == (A, B)
    assert deviations(transcript(turn)) == ()


def test_a_site_with_wrong_tags_is_named_with_what_that_is_worth() -> None:
    class Wrong(TaggedRound):
        def shared(self, site: str, tagged: Ring) -> Ring:
            tagged[-4] += np.uint64(site == "c2")
            return tagged

    turn = Wrong()
    (found,) = deviations(transcript(turn, tag_shares=shares(turn)))
    assert found.parties == ("c2",)
    assert "a server can make it look so" in found.what


def test_shares_of_another_release_are_the_servers() -> None:
    turn = Altered()
    other = [one.message.model_copy(update={"release_digest": OTHER}) for one in shares(turn)]
    (found,) = deviations(transcript(turn, tag_shares=(by(A, other[0]), by(B, other[1]))))
    assert (found.parties, "do not belong here" in found.what) == ((A, B), True)


@pytest.mark.parametrize("number", [1, 2])
def test_kept_halves_prove_which_server_signed_a_wrong_check(number: int) -> None:
    turn = Forged(number=number)
    assert turn.goes
    found = findings([kept_halves(turn)], ROSTER, lambda one: vector_of(turn))
    assert [(one.parties, one.round) for one in found.deviations] == [((B,), number)]
    assert findings([kept_halves(turn)], ROSTER).deviations == ()


def test_halves_that_nobody_committed_to_prove_nothing() -> None:
    turn = Forged()
    length, content = vector_of(turn)

    def other(start: int, stop: int) -> Ring:
        return content(start, stop) + np.uint64(1)

    with pytest.raises(MalformedMessage, match="prove nothing"):
        findings([kept_halves(turn)], ROSTER, lambda one: (length, other))


def kept_halves(turn: TaggedRound) -> RoundTranscript:
    mask_seed = turn.halves[masking_side(turn.number)].content
    altered = AlteredSum(tag_seed=turn.tag_seed.hex(), mask_seed=mask_seed.hex(), vector_file="vector")
    return transcript(turn, altered=altered)


def vector_of(turn: TaggedRound) -> tuple[int, ChunkSource]:
    vector = from_bytes(turn.halves[masking_side(turn.number).other].content, turn.length)
    return turn.length, lambda start, stop: vector[start:stop]


# --- what proves nothing ----------------------------------------------------------------------------------------------


def test_a_message_without_its_signature_names_nobody_and_is_listed() -> None:
    turn = TaggedRound()
    forged = sign(
        ReleaseSet(**{**turn.release.model_dump(), "sites": (*turn.release.sites, "c7")}),
        REQUESTER,
        PARTIES.keys_of("c1").signing,
    )
    stranger = sign(turn.release, "nobody", PARTIES.keys_of("c1").signing)
    found = findings([transcript(turn, release_sets=(forged, stranger), goes=())], ROSTER)
    assert found.deviations == ()
    assert len(found.unproven) == 2
    assert f"release_set has no valid signature of {REQUESTER}" in found.unproven[0]


def test_a_transcript_of_both_views_holds_each_message_once() -> None:
    turn = TaggedRound()
    go = turn.said
    assert isinstance(go.message, Go)
    announced = by(REQUESTER, turn.announcement)
    views = tuple(
        RoundView(
            round=1,
            attempt=1,
            state=RoundState.RELEASED,
            announcement=countersign(announced, name, PARTIES.keys_of(name).signing),
            agreed_set=turn.agreed_set,
            release_set=by(REQUESTER, turn.release),
            commitment=turn.commitments[place],
            go=cast(Signed[Go], go),
        )
        for place, name in enumerate((A, B))
    )
    kept = shown(turn.study.digest(), "c1", (views[0], views[1]))
    assert len(kept.announcements) == 2
    assert (len(kept.agreed_sets), len(kept.goes), kept.commitments) == (1, 1, turn.commitments)
    assert kept.checks == turn.checks
    assert findings([kept], ROSTER).deviations == ()
    assert RoundTranscript.model_validate_json(kept.model_dump_json()) == kept
