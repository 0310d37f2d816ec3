"""A contributor: what it believes, declines, and takes for a welcome or an end. Views made by hand, no server."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from client_agent.contributor.run import Contributor
from client_agent.requester.study import StudyOver
from client_agent.site.events import EventKind, RoundEnd
from client_agent.site.journal import StudyJournal
from client_agent.study.mail import needed
from protocol.errors import (
    AnnouncementMismatch,
    BadSignature,
    BrokenSeal,
    Clause,
    ErrorCode,
    MoietyError,
    PolicyRefusal,
    Unavailable,
    UnknownResource,
    WrongRound,
)
from protocol.messages.control import (
    EndCause,
    OutcomeCause,
    Purpose,
    RoundOutcome,
    RoundState,
    RoundView,
    Signed,
    Study,
    StudyEnd,
    StudyEndState,
    StudyState,
    StudyView,
    WeightList,
    sign,
)
from protocol.parameters import Needs
from protocol.policy.site_policy import SitePolicy
from protocol.rounds.evidence import PastRelease
from protocol.shared_model import model_digest_of
from protocol.sharing import Side
from tests.unit.client_agent.announced_rounds import (
    DIGEST,
    MODEL,
    STUDY,
    announced,
    decided,
    post,
    released,
    views,
    weights,
    welcome_mail,
)
from tests.unit.client_agent.benches import SITE_KEY, Bench, contributor_bench, requester_bench
from tests.unit.client_agent.federation import ended_as, ended_round, keys, operator_keys, study_view


def test_a_sound_round_is_accepted_and_remembered_before_anything_leaves(bench: Bench) -> None:
    listed = weights()
    decision = decided(bench, listed, views(announced(listed)))
    assert decision.accepted
    assert bench.contributor.state.memory.last_listed == listed.weights
    assert bench.contributor.state.memory.measured_rounds == (1,)
    assert bench.contributor.decisions.decide(*views(announced(listed))) == decision
    assert bench.servers[Side.A].sent == {}


Change = Callable[[WeightList], tuple[RoundView, RoundView]]
MISMATCH = ErrorCode.ANNOUNCEMENT_MISMATCH


@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        (lambda w: views(announced(w), announced(w, closes_at_s=5)), MISMATCH, "the two servers show different"),
        (lambda w: (views(announced(w))[0],) * 2, ErrorCode.BAD_SIGNATURE, "signature of 'operator-b' is missing"),
        (lambda w: views(announced(w), requester="c2"), ErrorCode.BAD_SIGNATURE, "signature of 'r0' is missing"),
        (lambda w: views(announced(w, study_digest="00" * 32)), MISMATCH, "for another study or round"),
        (lambda w: views(announced(w, weight_list_digest="00" * 32)), MISMATCH, "is not the announced one"),
        (lambda w: views(announced(w, model_digest="00" * 32)), ErrorCode.MODEL_DIVERGED, "is not the requester's"),
        (lambda w: views(announced(w, model_version=2)), Clause.MODEL_BEHIND, "this site has 0"),
        (lambda w: views(announced(w, least_contributors=2)), Clause.LEAST_NUMBER, "least_number"),
    ],
)
def test_what_does_not_hold_is_declined_with_the_reason(
    bench: Bench, change: Change, code: ErrorCode | Clause, reason: str
) -> None:
    listed = weights()
    decision = decided(bench, listed, change(listed))
    clause = code if isinstance(code, Clause) else None
    expected = (ErrorCode.POLICY_REFUSAL if clause else code, clause)
    assert (decision.accepted, decision.code, decision.clause) == (False, *expected)
    assert reason in decision.reason
    assert (bench.decline().code, bench.decline().clause) == expected
    assert reason in bench.decline().reason
    assert bench.contributor.state.memory.last_listed == ()
    again = bench.contributor.decisions.decide(*change(listed))
    assert again == decision
    assert [event.kind for event in bench.events].count(EventKind.DECLINED) == 1


def test_a_site_that_is_not_listed_says_nothing(bench: Bench) -> None:
    listed = weights()
    away = announced(listed, listed=("c2", "c3", "r0"))
    decision = decided(bench, listed, views(away))
    assert (decision.accepted, decision.listed, decision.code) == (False, False, None)
    assert bench.servers[Side.A].sent == {}


@pytest.mark.parametrize("number", ["\u00b2", "9" * 5000, "-1", ""])
def test_a_topic_that_names_no_version_is_no_welcome(bench: Bench, number: str) -> None:
    """One server's list of letters is its word alone, and must not end the look at both views."""
    bench.contributor.take_welcome(study_view(DIGEST, mail=(f"welcome-{number}/r0",)))
    assert bench.servers[Side.A].sent == {}


def test_one_server_that_says_a_site_is_not_listed_is_not_believed(bench: Bench) -> None:
    """Nothing is journalled by its word alone: the site takes part once it shows what was announced."""
    listed = weights()
    away = announced(listed, listed=("c2", "c3", "r0"))
    at_a, at_b = views(announced(listed))
    forged = sign(away, operator_keys(Side.A).name, operator_keys(Side.A).signing)
    with pytest.raises(BadSignature):
        decided(bench, listed, (at_a.model_copy(update={"announcement": forged}), at_b))
    with pytest.raises(AnnouncementMismatch):
        decided(bench, listed, views(away, announced(listed)))
    assert decided(bench, listed, (at_a, at_b)).accepted


def test_too_late_is_no_reason_to_decline(bench: Bench) -> None:
    listed = weights()
    at = views(announced(listed))
    decision = decided(bench, listed, at)
    bench.servers[Side.A].refuses = bench.servers[Side.B].refuses = WrongRound("locked")
    assert bench.contributor.carry_out(decision, 1) == decision
    assert [event.text for event in bench.events if event.kind is EventKind.PROBLEM] == ["locked"]
    assert bench.servers[Side.A].sent == {}


def test_a_server_that_is_away_leaves_the_contribution_to_be_resent(bench: Bench) -> None:
    listed = weights()
    decision = decided(bench, listed, views(announced(listed)))
    bench.servers[Side.A].refuses = bench.servers[Side.B].refuses = Unavailable("down")
    folder = bench.contributor.journal.attempt_folder(1, 1)
    with pytest.raises(Unavailable):
        bench.contributor.carry_out(decision, 1)
    first = (folder / "a.sealed").read_bytes()
    with pytest.raises(Unavailable):
        bench.contributor.carry_out(decision, 1)
    assert (folder / "a.sealed").read_bytes() == first
    assert not (folder / "done").exists()


skip_of = partial(ended_round, DIGEST)


def with_outcomes(
    at: tuple[RoundView, RoundView], at_a: Signed[RoundOutcome] | None, at_b: Signed[RoundOutcome] | None
) -> tuple[RoundView, RoundView]:
    return at[0].model_copy(update={"outcome": at_a}), at[1].model_copy(update={"outcome": at_b})


def test_a_skipped_round_is_recorded_once_and_settled(bench: Bench) -> None:
    """Side A may show its own signature only, while side B has both."""
    listed = weights()
    decided(bench, listed, views(announced(listed)))
    assert bench.contributor.state.memory.unsettled == 1
    at = with_outcomes(views(announced(listed), state=RoundState.SKIPPED), skip_of(1, (Side.A,)), skip_of())
    bench.contributor.follow(*at)
    bench.contributor.follow(*at)
    records = [event.record for event in bench.events if event.record is not None]
    assert [(record.round, record.state, record.reason) for record in records] == [
        (1, RoundEnd.SKIPPED, OutcomeCause.NOT_AGREED_IN_TIME.said())
    ]
    assert bench.contributor.state.memory.unsettled is None


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (None, UnknownResource),
        (skip_of(1, (Side.A,)), UnknownResource),
        (skip_of(2), AnnouncementMismatch),
        (skip_of(study_digest="00" * 32), AnnouncementMismatch),
        (skip_of(outcome=RoundState.BURNT, cause=OutcomeCause.CORRELATIONS_LOST), AnnouncementMismatch),
    ],
)
def test_a_skip_that_not_both_servers_signed_settles_nothing(
    bench: Bench, outcome: Signed[RoundOutcome] | None, error: type[MoietyError]
) -> None:
    listed = weights()
    decided(bench, listed, views(announced(listed)))
    with pytest.raises(error):
        bench.contributor.follow(*with_outcomes(views(announced(listed), state=RoundState.SKIPPED), outcome, outcome))
    assert bench.contributor.state.memory.unsettled == 1
    assert bench.contributor.state.last_recorded_round == 0


@pytest.mark.parametrize(
    ("skipped", "code"),
    [
        ((), Clause.OUTCOME_UNKNOWN),
        ((skip_of(2),), Clause.OUTCOME_UNKNOWN),
        ((skip_of(1, (Side.B,)),), ErrorCode.BAD_SIGNATURE),
        ((skip_of(outcome=RoundState.BURNT, cause=OutcomeCause.CORRELATIONS_LOST),), ErrorCode.ANNOUNCEMENT_MISMATCH),
        ((skip_of(), skip_of(2)), None),
    ],
)
def test_a_site_that_missed_a_rounds_end_needs_proof_before_the_next_on_the_same_model(
    bench: Bench, skipped: tuple[Signed[RoundOutcome], ...], code: ErrorCode | Clause | None
) -> None:
    """It accepted round 1, slept through two skips, and is back in round 3."""
    first, third = weights(), weights(round_number=3)
    decided(bench, first, views(announced(first)))
    post(bench, third, skipped)
    decision = bench.contributor.decisions.decide(*views(announced(third)))
    assert (decision.accepted, decision.clause or decision.code) == (code is None, code)
    assert bench.contributor.state.memory.unsettled == (3 if decision.accepted else 1)


def seen(state: StudyState, current: RoundView) -> StudyView:
    return study_view(DIGEST, end=ended_as(state, DIGEST), current=current)


@pytest.mark.parametrize("old", list(Side))
def test_an_old_view_does_not_hide_the_last_release(bench: Bench, old: Side) -> None:
    """A server that was away still shows the round before its release when the other one shows the study's end."""
    listed = weights()
    decided(bench, listed, views(announced(listed)))
    past = views(announced(listed), state=RoundState.MEASURED)[0]
    now = views(announced(listed), state=RoundState.RELEASED)[0]
    both = {old: seen(StudyState.OPEN, past), old.other: seen(StudyState.COMPLETED, now)}
    bench.contributor.watch.both = lambda: (both[Side.A], both[Side.B])  # type: ignore[method-assign]
    assert not bench.contributor.react()
    assert bench.contributor.state.finished is None


def test_a_study_that_ended_before_both_released_is_over(bench: Bench) -> None:
    listed = weights()
    decided(bench, listed, views(announced(listed)))
    measured, released = (
        views(announced(listed), state=state)[0] for state in (RoundState.MEASURED, RoundState.RELEASED)
    )
    ended = seen(StudyState.CANCELLED, measured), seen(StudyState.CANCELLED, released)
    bench.contributor.watch.both = lambda: ended  # type: ignore[method-assign]
    assert bench.contributor.react()
    assert bench.contributor.state.finished == "cancelled: as asked"


# --- when a site takes the model and the key that the requester sends it, and when not --------------------------------


def test_a_welcome_with_a_missed_release_replaces_model_and_key(bench: Bench) -> None:
    """The site holds model 0 and was away for several rounds: the last release is evidence enough."""
    bench.contributor.take_welcome(welcome_mail(bench, 3, previous=released(7, 2)))
    assert bench.contributor.state.model_version == 3
    assert bench.contributor.state.site_key == "77" * 32
    np.testing.assert_array_equal(bench.contributor.require_model(), MODEL * 2)
    np.testing.assert_array_equal(bench.contributor.journal.load_model(3), MODEL * 2)


def test_the_first_welcome_names_the_model_that_the_site_derives(bench: Bench) -> None:
    """It needs no evidence, and no checkpoint: only the sites' key is taken from it."""
    first = bench.contributor.first_kept()
    bench.contributor.save(model_version=None)
    view = welcome_mail(bench, 0, digest=hashlib.sha256(first.tobytes()).hexdigest())
    del bench.servers[Side.A].mail["checkpoint-0/every-site"]
    bench.contributor.take_welcome(view)
    assert bench.contributor.state.model_version == 0
    assert bench.contributor.state.site_key == "77" * 32
    np.testing.assert_array_equal(bench.contributor.require_kept(), first)


def test_another_first_model_is_refused(bench: Bench) -> None:
    bench.contributor.save(model_version=None)
    with pytest.raises(PolicyRefusal, match="first_model: the requester's welcome names the first model"):
        bench.contributor.take_welcome(welcome_mail(bench, 0))
    assert bench.contributor.state.model_version is None


def test_a_pretrained_first_model_is_the_one_that_the_study_pins(tmp_path: Path) -> None:
    willing, pinned = SitePolicy(may_pretrain=True), STUDY.model_copy(update={"pretrained_digest": "00" * 32})
    for of, taken in ((pinned, False), (pretrained_study(MODEL * 2), True)):
        folder = tmp_path / str(taken)
        folder.mkdir()
        with contributor_bench(folder, of, MODEL, willing) as bench:
            bench.contributor.save(model_version=None)
            view = welcome_mail(bench, 0, study=of)
            if taken:
                bench.contributor.take_welcome(view)
                np.testing.assert_array_equal(bench.contributor.require_model(), MODEL * 2)
            else:
                with pytest.raises(PolicyRefusal, match=r"first_model: .* the study pins 0000"):
                    bench.contributor.take_welcome(view)
                assert bench.contributor.state.model_version is None


def pretrained_study(model: np.ndarray) -> Study:
    return STUDY.model_copy(update={"pretrained_digest": model_digest_of(model)})


@pytest.mark.parametrize(
    "previous",
    [
        None,
        released(7, 1),
        released(7, 3),
        released(3, 2),
        released(7, 2, sites=("c1", "c2", "r0")),
        released(7, 2, purpose=Purpose.COUNTS, opens=Needs.NOTHING),
    ],
    ids=["none", "older model", "newer model", "as old as the last accepted", "this site's own round", "class counts"],
)
def test_a_welcome_without_a_missed_release_is_not_taken(bench: Bench, previous: PastRelease | None) -> None:
    """Otherwise the requester could send the model it has again, and the counts per model would start afresh."""
    listed = weights(round_number=3)
    assert decided(bench, listed, views(announced(listed))).accepted
    before = bench.contributor.state
    for _ in range(2):
        bench.contributor.take_welcome(welcome_mail(bench, 3, previous=previous))
    assert bench.contributor.state == before
    (problem,) = [event.text for event in bench.events if event.kind is EventKind.PROBLEM]
    assert problem.startswith("model 3 came without ")


def test_a_site_that_declined_a_round_may_take_the_welcome_after_it(bench: Bench) -> None:
    """It had no part in round 3, even if it has recorded the round."""
    bench.contributor.save(last_recorded_round=4)
    bench.contributor.take_welcome(welcome_mail(bench, 3, previous=released(3, 2)))
    assert bench.contributor.state.model_version == 3


def test_a_welcome_with_evidence_that_does_not_hold_is_refused(bench: Bench) -> None:
    sound = released(7, 2)
    one_server = sound.agreed_set.model_copy(update={"signatures": sound.agreed_set.signatures[:1]})
    with pytest.raises(BadSignature):
        bench.contributor.take_welcome(
            welcome_mail(bench, 3, previous=sound.model_copy(update={"agreed_set": one_server}))
        )
    assert bench.contributor.state.model_version == 0


def test_a_missed_sum_that_no_server_keeps_leaves_the_site_behind(bench: Bench) -> None:
    """It declines, and the requester sends the checkpoint."""
    listed = weights(round_number=3)
    post(bench, listed, previous=released(2, 0))
    decision = bench.contributor.decisions.decide(*views(announced(listed, model_version=1)))
    assert (decision.accepted, decision.clause) == (False, Clause.MODEL_BEHIND)
    assert any("the output of round 2 is no longer kept" in event.text for event in bench.events)


@pytest.mark.parametrize(
    ("by", "changes"),
    [
        ((), {}),
        (("c2",), {}),
        (("c2", "c2", "c2"), {}),
        (("c2", "c1"), {}),
        (("c2", "c3"), {"checkpoint_digest": "00" * 32}),
        (("c2", "c3"), {"model_version": 2}),
        (("c2", "c3"), {"round": 6}),
        (("c2", "c3"), {"study_digest": "00" * 32}),
    ],
    ids=["nobody", "half", "one of them thrice", "no contributor", "digest", "version", "round", "study"],
)
def test_a_checkpoint_needs_the_word_of_more_than_half_of_its_contributors(
    bench: Bench, by: tuple[str, ...], changes: dict[str, object]
) -> None:
    """The release is genuine and newer; what the model is after it only its contributors can say."""
    for _ in range(2):
        view = welcome_mail(bench, 3, previous=released(7, 2), attested_by=by, attested=changes)
        bench.contributor.take_welcome(view)
        bench.servers[Side.A].mail.clear()
    assert bench.contributor.state.model_version == 0
    (problem,) = [event.text for event in bench.events if event.kind is EventKind.PROBLEM]
    assert problem.startswith("model_behind: model 3 came with the word of ")
    assert "of the 2 contributors whose sum led to it, 2 are needed" in problem


def test_more_than_may_collude_vouch_for_a_checkpoint(tmp_path: Path) -> None:
    """The larger of the study's and the site's own number counts: two may lie here, so three must speak."""
    with contributor_bench(tmp_path, STUDY, MODEL, SitePolicy(assumed_colluders=2)) as bench:
        bench.contributor.take_welcome(welcome_mail(bench, 3, previous=released(7, 2)))
        assert bench.contributor.state.model_version == 0
        sites = ("c2", "c3", "r0")
        listed = needed(bench.contributor, released(7, 2, sites=sites))
        assert listed == 3


def test_a_forged_word_for_a_checkpoint_is_refused(bench: Bench) -> None:
    view = welcome_mail(bench, 3, previous=released(7, 2), attested={"site": "c3"})
    with pytest.raises(BadSignature):
        bench.contributor.take_welcome(view)
    assert bench.contributor.state.model_version == 0


def test_an_old_welcome_changes_nothing(bench: Bench) -> None:
    bench.contributor.take_welcome(welcome_mail(bench, 0))
    assert bench.contributor.state.site_key == SITE_KEY.hex()


def test_a_welcome_of_somebody_else_or_with_another_model_is_refused(bench: Bench) -> None:
    with pytest.raises(BadSignature):
        bench.contributor.take_welcome(welcome_mail(bench, 3, signer="c2"))
    with pytest.raises(BrokenSeal, match="not the one that the welcome names"):
        bench.contributor.take_welcome(welcome_mail(bench, 3, digest="00" * 32, previous=released(7, 2)))
    assert bench.contributor.state.model_version == 0


# --- only the requester's signature ends a study at a site, whatever servers show (docs/protocol.md 14) ---------------


GENUINE = ended_as(StudyState.COMPLETED, DIGEST)


def end(signer: str = "r0", digest: str = DIGEST) -> Signed[StudyEnd]:
    message = StudyEnd(
        study_digest=digest, state=StudyEndState.COMPLETED, cause=EndCause.ALL_ROUNDS_DONE, reason="done"
    )
    keys_of = operator_keys(Side.A) if signer == "operator" else keys(signer)
    return sign(message, keys_of.name, keys_of.signing)


def by_nobody() -> Signed[StudyEnd]:
    return Signed[StudyEnd](message=end().message)


def stolen() -> Signed[StudyEnd]:
    """The requester's signature under another end."""
    other = end().message.model_copy(update={"state": StudyEndState.FAILED})
    return Signed[StudyEnd](message=other, signatures=end().signatures)


FORGED = {
    "unsigned": by_nobody(),
    "signed by the server": end("operator"),
    "signed by a site": end("c2"),
    "another end under the signature": stolen(),
    "another study's end": end(digest="00" * 32),
}


def ended_view(shown: Signed[StudyEnd] | None) -> StudyView:
    return study_view(DIGEST, end=shown)


@pytest.mark.parametrize("forged", FORGED.values(), ids=[name.replace(" ", "-") for name in FORGED])
def test_a_contributor_that_is_told_so_names_it_once_and_goes_on(bench: Bench, forged: Signed[StudyEnd]) -> None:
    bench.contributor.watch.both = lambda: (ended_view(forged), ended_view(forged))  # type: ignore[method-assign]
    assert [bench.contributor.react() for _ in range(3)] == [False] * 3
    assert bench.contributor.state.finished is None
    assert [event.kind for event in bench.events].count(EventKind.PROBLEM) == 1
    bench.contributor.watch.both = lambda: (ended_view(forged), ended_view(GENUINE))  # type: ignore[method-assign]
    assert bench.contributor.react()
    assert (bench.contributor.state.ended_by, bench.contributor.state.over) == (GENUINE, True)


@pytest.mark.parametrize("forged", FORGED.values(), ids=[name.replace(" ", "-") for name in FORGED])
def test_a_requester_that_is_told_so_goes_on(tmp_path: Path, forged: Signed[StudyEnd]) -> None:
    with requester_bench(tmp_path, STUDY, MODEL) as bench:
        for side in Side:
            bench.requester.watch.publish(side, ended_view(forged))
        assert bench.requester.until(lambda a, b: "still here") == "still here"
        bench.requester.watch.publish(Side.B, ended_view(GENUINE))
        with pytest.raises(StudyOver, match="completed: as asked"):
            bench.requester.until(lambda a, b: "still here")


def test_a_site_that_had_finished_without_evidence_goes_on(bench: Bench) -> None:
    """As an unsigned ended_view had it under the old rule: the text alone ends nothing after a restart."""
    bench.contributor.save(finished="completed: says a server")
    journal: StudyJournal = bench.contributor.journal
    again = Contributor(bench.contributor.context, bench.contributor.signed_study, journal)
    assert again.state.finished is not None
    assert not again.state.over
    again.save(ended_by=GENUINE)
    assert again.state.over
