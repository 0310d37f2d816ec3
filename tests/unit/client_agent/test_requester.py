"""The requester: what it keeps and encloses of rounds, how it plans the next one, and what ends a study. No server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from client_agent.requester.admission import welcome
from client_agent.requester.own_update import keep_best
from client_agent.requester.plan import hindrance, new_plan
from client_agent.requester.postbox import send_weights
from client_agent.requester.round import RequesterRound
from client_agent.requester.run import Requester
from client_agent.requester.study import Refused, RoundPlan, Settled
from client_agent.site.events import Absence, Absent, EventKind, RoundEnd
from client_agent.site.journal import Kept, KeptModel, kept_model, load_kept
from client_agent.site.letters import Attestation, CountedClasses, WeightMail, Welcome
from client_agent.study.mail import checkpoint_digest
from harness.federation.clocks import ToldClock
from protocol.errors import Clause, ErrorCode, PolicyRefusal
from protocol.messages.control import (
    MOST_COUNTS_ROUNDS,
    AgreedSet,
    EndCause,
    OutcomeCause,
    Purpose,
    RoundOutcome,
    RoundState,
    RoundView,
    RuleName,
    Signed,
    StudyEndState,
    require_signatures,
    sign,
)
from protocol.messages.letter import open_letter, seal_letter
from protocol.parameters import Needs
from protocol.policy.memory import remember_release
from protocol.policy.site_policy import SitePolicy
from protocol.rounds.evidence import PastRelease
from protocol.rules.interface import Measured
from protocol.sharing import Side
from tests.kit.present import present
from tests.unit.client_agent.announced_rounds import MODEL
from tests.unit.client_agent.benches import FakeServer, RequesterBench, planned, requester_bench
from tests.unit.client_agent.federation import (
    CONTRIBUTORS,
    PARAMETERS,
    REQUESTER,
    ROSTER,
    announcement,
    ended_round,
    evidence,
    keys,
    operator_keys,
    release,
    signed_by_both,
    study,
    study_view,
    weight_list,
)
from tests.unit.client_agent.test_decisions import MODEL as SMALL_MODEL
from tests.unit.client_agent.test_decisions import TOTALS, study_with

STUDY = study().model_copy(update={"rounds": 200})
DIGEST = STUDY.digest()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RequesterBench]:
    with requester_bench(tmp_path, STUDY, np.ones(PARAMETERS.dimension, dtype=np.float32)) as made:
        yield made


@pytest.fixture
def requester(bench: RequesterBench) -> Requester:
    return bench.requester


skip_of = partial(ended_round, DIGEST, cause=OutcomeCause.QUERIES_MISSING)


def skipped(number: int, declines: tuple[Refused, ...] = ()) -> Settled:
    return Settled(RoundEnd.SKIPPED, 1, "short", declines, None, None, skip=skip_of(number))


def letter(requester: Requester, form: type, kind: str, topic: str, site: str, number: int):
    (sealed,) = requester.context.clients[Side.A].sent[f"{topic}/{site}"]  # type: ignore[attr-defined]
    return open_letter(sealed, form, kind, DIGEST, REQUESTER, site, number, keys(site).sealing)


def test_a_skip_is_settled_and_enclosed_from_then_on(requester: Requester) -> None:
    first = planned(requester)
    assert first.skipped == ()
    requester.keep(next_round=2)
    with pytest.raises(PolicyRefusal, match="outcome_unknown"):
        new_plan(requester)
    requester.keep(next_round=1)
    requester.settle(first, skipped(1))
    second = planned(requester)
    assert second.skipped == (skip_of(1),)
    mail = WeightMail(weight_list=second.weight_list, previous=second.previous, skipped=second.skipped)
    send_weights(requester, mail, CONTRIBUTORS)
    assert letter(requester, WeightMail, "weights", "weights-2", "c1", 2).skipped == (skip_of(1),)
    past = release(2)
    discarded = Settled(RoundEnd.DISCARDED, 1, "", (), None, None, past=past)
    requester.settle(second, discarded)
    assert (requester.progress.skipped, requester.progress.previous) == ((skip_of(1),), past)


def test_a_site_that_was_not_in_the_last_sum_is_told_of_the_skips_before_it(requester: Requester) -> None:
    """It must account for every round; whoever was in that sum heard of them then."""
    asked = weight_list(4)
    present = REQUESTER, *CONTRIBUTORS[1:]
    previous = evidence(announcement(weight_list(2)), weight_list(2), present)
    mail = WeightMail(weight_list=asked, previous=previous, skipped=(skip_of(1), skip_of(3)))
    send_weights(requester, mail, CONTRIBUTORS)
    away, there = (letter(requester, WeightMail, "weights", "weights-4", site, 4).skipped for site in CONTRIBUTORS[:2])
    assert (away, there) == ((skip_of(1), skip_of(3)), (skip_of(3),))


def test_only_the_last_skips_are_kept(requester: Requester) -> None:
    for number in range(1, 41):
        requester.keep(**requester.after_skip(skipped(number), number))
    assert [skip.message.round for skip in requester.progress.skipped] == list(range(9, 41))


@pytest.mark.parametrize("clause", list(Clause))
def test_a_site_that_lacks_evidence_or_pauses_stays_listed(requester: Requester, clause: Clause) -> None:
    """Whatever the text says: only the clause decides."""
    said = f"{Clause.OUTCOME_UNKNOWN.value}: the requester's own contribution is missing"
    changes = requester.after_declines(skipped(1, (Refused("c2", ErrorCode.POLICY_REFUSAL, clause, said),)))
    later = (Clause.MEMORY_UNRECONCILED, Clause.BUDGET_UNRECONCILED, Clause.KEYS_RENEWED, Clause.QUIET_HOURS)
    lacks = (Clause.OUTCOME_UNKNOWN, Clause.MODEL_BEHIND, Clause.ISOLATION, Clause.PAUSED, *later)
    assert changes["dropped"] == (() if clause in lacks else ("c2",))


def test_the_best_model_by_validation_examples_is_kept(requester: Requester, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter((0.5, 0.4, 0.4, float("nan"), 0.6))
    monkeypatch.setattr(requester.learner, "validation_loss", lambda _: next(losses))
    found = []
    for version in range(1, 6):
        model = np.full(PARAMETERS.dimension, version, dtype=np.float32)
        requester.adopt_model(model, version)
        keep_best(requester)
        found.append(kept_model(requester.journal, Kept.BEST))
    second = KeptModel(version=2, validation_loss=0.4)
    assert found == [KeptModel(version=1, validation_loss=0.5), *[second] * 4]
    assert set(load_kept(requester.journal, Kept.BEST, second)) == {2.0}
    assert len(list(requester.journal.folder.glob("best-*.safetensors"))) == 1


def test_nothing_is_the_best_without_validation_examples(requester: Requester) -> None:
    requester.adopt_model(np.ones(PARAMETERS.dimension, dtype=np.float32), 1)
    keep_best(requester)
    assert kept_model(requester.journal, Kept.BEST) is None


def test_an_unusable_update_drops_a_site_the_second_time(requester: Requester) -> None:
    refused = Refused("c2", ErrorCode.UNUSABLE_UPDATE, None, "NaN")
    first = requester.after_declines(skipped(1, (refused,)))
    assert first == {"unusable": ("c2",), "dropped": (), "given_up": ()}
    requester.keep(**first)
    second = requester.after_declines(skipped(2, (refused,)))
    assert second["dropped"] == ("c2",)
    assert second["given_up"] == (Absence(site="c2", why=Absent.GIVEN_UP, text="since round 1, unusable_update: NaN"),)


def attested(requester: Requester, past: PastRelease, site: str, **changes: object) -> str:
    """The site's word for the requester's model waits at the relay; -> the entry that views show of it."""
    message = Attestation(
        study_digest=requester.study_digest,
        site=site,
        model_version=requester.state.model_version or 0,
        round=past.announcement.round,
        checkpoint_digest=checkpoint_digest(requester),
    )
    signed = sign(message.model_copy(update=changes), site, keys(site).signing)
    party, version = ROSTER.party(REQUESTER), message.model_version
    assert party is not None
    sealed = seal_letter(signed, "attested", requester.study_digest, site, party, version)
    relay = cast(FakeServer, requester.context.clients[Side.A])
    relay.mail[f"attested-{version}/{REQUESTER}/{site}"] = sealed
    return f"attested-{version}/{site}"


def show(requester: Requester, mail: list[str], patch: pytest.MonkeyPatch) -> None:
    """Both views, at a clock that goes on by ten seconds with every look."""
    view = study_view(DIGEST, mail=tuple(mail))
    patch.setattr(requester.watch, "both", lambda: (view, view))
    patch.setattr(requester.watch, "wait", lambda *_: None)
    requester.context = replace(requester.context, clock=ToldClock(count(0, 10).__next__))


def test_sites_that_fell_behind_are_shown_the_release_they_missed_and_who_vouches(
    requester: Requester, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, past = planned(requester), release(1)
    requester.adopt_model(requester.require_kept(), 1)
    show(requester, [attested(requester, past, "c1"), attested(requester, past, "c3"), "decline-1/c2"], monkeypatch)
    behind = (Refused("c2", ErrorCode.POLICY_REFUSAL, Clause.MODEL_BEHIND, "why"),)
    requester.settle(plan, replace(skipped(1, behind), past=past, end=RoundEnd.RELEASED))
    signed = letter(requester, Signed[Welcome], "welcome", "welcome-1", "c2", 1)
    sent = require_signatures(signed, ROSTER, (REQUESTER,))
    assert sent.previous == past
    assert [one.message.site for one in sent.attestations] == ["c1", "c3"]


@pytest.mark.parametrize("changes", [{"checkpoint_digest": "00" * 32}, {"round": 2}, {"study_digest": "00" * 32}])
def test_nobody_is_let_in_while_too_few_contributors_vouch(
    bench: RequesterBench, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    """One of two says nothing, and another is wrong: the requester hears who is missing."""
    requester, past = bench.requester, release(1)
    requester.adopt_model(requester.require_kept(), 1)
    requester.keep(history=(past,))
    show(requester, [attested(requester, past, "c1"), attested(requester, past, "c2", **changes)], monkeypatch)
    assert not welcome(requester, ["c3"])
    relay = cast(FakeServer, requester.context.clients[Side.A])
    assert not relay.sent
    texts = bench.texts(EventKind.PROBLEM)
    assert "site 'c2' attests another model 1 than this one" in texts[0]
    assert texts[1] == (
        "c3 cannot be let in yet: model 1 needs the word of 2 of its contributors, and none came from c2, c3"
    )


def test_a_discarded_sum_is_tried_once_more_and_then_ends_the_study(requester: Requester) -> None:
    """Two sums against the same model: had the first been applied, the model would be a newer one."""
    pasts = (release(1), release(2))
    requester.keep(history=pasts[:1])
    assert hindrance(requester) is None
    requester.keep(history=pasts)
    found = present(hindrance(requester))
    assert found.cause is EndCause.SUM_TOO_LONG
    assert "the sums of rounds [1, 2]" in found.public
    requester.adopt_model(requester.require_kept(), 1)
    assert hindrance(requester) is None


def test_a_list_names_the_releases_that_a_site_missed(requester: Requester) -> None:
    """c3 last took part in the second of four; c1 in all; who never did gets all that are kept."""
    pasts = [release(1), release(2), release(3, (REQUESTER, "c1", "c2")), release(4)]
    without = pasts[2].agreed_set.message
    held = tuple(one for one in without.contributions if one.site != "c3")
    agreed = without.model_copy(update={"contributions": held})
    pasts[2] = pasts[2].model_copy(update={"agreed_set": signed_by_both(agreed)})
    pasts[3] = pasts[3].model_copy(update={"agreed_set": pasts[2].agreed_set})
    requester.keep(history=tuple(pasts), previous=pasts[3])
    assert requester.missed_by("c1") == ()
    assert requester.missed_by("c3") == (pasts[1], pasts[2])
    assert requester.missed_by("c9") == tuple(pasts[:3])


def seen(plan: RoundPlan, outcome: Signed[RoundOutcome] | None) -> RoundView:
    number = plan.announcement.message.round
    return RoundView(round=number, attempt=1, state=RoundState.SKIPPED, announcement=plan.announcement, outcome=outcome)


def test_a_skip_counts_once_either_view_shows_both_signatures(requester: Requester) -> None:
    plan = planned(requester)
    turn = RequesterRound(requester, plan)
    one = sign(skip_of(1).message, operator_keys(Side.A).name, operator_keys(Side.A).signing)
    assert turn.skipped(seen(plan, one), seen(plan, None)) is None
    for at_a, at_b in ((one, skip_of(1)), (skip_of(1), None)):
        settled = present(turn.skipped(seen(plan, at_a), seen(plan, at_b)))
        assert (settled.end, settled.reason, settled.skip) == (RoundEnd.SKIPPED, skip_of(1).message.reason, skip_of(1))


def test_a_forged_skip_is_named_once_and_ends_nothing(requester: Requester) -> None:
    told: list[str] = []
    requester.problem = lambda number, text: told.append(text)  # type: ignore[method-assign,assignment]
    plan = planned(requester)
    turn = RequesterRound(requester, plan)
    for _ in range(3):
        assert turn.skipped(seen(plan, skip_of(2)), seen(plan, None)) is None
    assert told == ["round 1: what the servers signed does not say that this study's round 1 is skipped"]


def test_evidence_that_nobody_signed_ends_no_study(requester: Requester) -> None:
    """One server shows an agreed set without the other's signature: it is named once, and looked at again."""
    told: list[str] = []
    requester.problem = lambda number, text: told.append(text)  # type: ignore[method-assign,assignment]
    turn = RequesterRound(requester, planned(requester))
    bare = Signed[AgreedSet](message=release().agreed_set.message)
    shown = seen(turn.plan, None).model_copy(update={"state": RoundState.MEASURED, "agreed_set": bare})
    for _ in range(3):
        turn.once(turn.release, shown, shown)
    assert len(told) == 1
    assert "agreed_set: the signature of" in told[0]
    assert requester.progress.end is None


# --- class counts come first, are repeated when skipped, and do not count ---------------------------------------------


COUNTING = study_with(RuleName.WFEDAVG)
COUNTED = COUNTING.digest()


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[Requester]:
    with requester_bench(tmp_path, COUNTING, SMALL_MODEL) as made:
        yield made.requester


def skip_count(counting: Requester) -> None:
    plan = planned(counting)
    number = plan.announcement.message.round
    settled = Settled(RoundEnd.SKIPPED, 1, "a site is late", (), None, None, skip=ended_round(COUNTED, number))
    counting.settle(plan, settled)


def count_classes(counting: Requester, totals: tuple[int, ...] = TOTALS) -> None:
    """A released round of counts, as it is after its sum was opened."""
    plan = planned(counting)
    announced = plan.announcement.message
    number = announced.round
    counting.save(counted=CountedClasses(study_digest=COUNTED, round=number, totals=totals))
    counting.keep(
        next_round=number + 1,
        counts_rounds=number,
        memory=remember_release(counting.progress.memory, announced, plan.weight_list, announced.listed),
    )


def test_counts_come_first_open_nothing_and_are_repeated_when_skipped(counting: Requester) -> None:
    for number in (1, 2):
        announced = planned(counting).announcement.message
        assert (announced.round, announced.purpose, announced.opens) == (number, Purpose.COUNTS, Needs.NOTHING)
        assert planned(counting).counted is None
        skip_count(counting)
        assert counting.progress.updates_done == 0
    assert counting.progress.counts_rounds == 2


def test_updates_follow_with_the_totals_for_sites_that_missed_them(counting: Requester) -> None:
    skip_count(counting)
    count_classes(counting)
    plan = planned(counting)
    announced = plan.announcement.message
    assert (announced.round, announced.purpose) == (3, Purpose.UPDATE)
    assert require_signatures(present(plan.counted), ROSTER, (REQUESTER,)).totals == TOTALS
    assert counting.progress.updates_done == 0
    assert counting.update_number(3, 0) == 1
    assert {weight.numerator for weight in plan.weight_list.weights} == {COUNTING.parameters.weight_grid}


def ended(counting: Requester) -> tuple[str, str]:
    """The texts at the servers and at this site of a study that failed."""
    assert counting.next_plan() is None
    end = present(counting.progress.end)
    assert end.message.state is StudyEndState.FAILED
    return end.message.reason, counting.progress.why


def test_a_class_that_no_site_has_ends_the_study_and_the_servers_do_not_learn_which(counting: Requester) -> None:
    count_classes(counting, (14, 0))
    public, why = ended(counting)
    assert public == "no site has a training example of some class, so no site can weigh itself"
    assert "classes [1]; check the labels" in why
    assert "1" not in public


def test_a_class_that_no_site_has_is_called_by_the_studys_name(counting: Requester) -> None:
    of = counting.study
    model = of.model.named((), ("benign", "malignant"))
    counting.study = of.model_copy(update={"model": model})
    count_classes(counting, (14, 0))
    public, why = ended(counting)
    assert "malignant" not in public
    assert "classes ['malignant']; check the labels" in why


def test_counts_that_cannot_be_summed_end_the_study(counting: Requester) -> None:
    counting.keep(next_round=MOST_COUNTS_ROUNDS + 1, counts_rounds=MOST_COUNTS_ROUNDS)
    assert "could not be summed in 8 rounds" in ended(counting)[0]


def test_counts_whose_sum_was_discarded_are_not_summed_again(counting: Requester) -> None:
    plan = planned(counting)
    memory = counting.progress.memory
    announced = plan.announcement.message
    counting.keep(
        next_round=2, counts_rounds=1, memory=remember_release(memory, announced, plan.weight_list, announced.listed)
    )
    assert "counts are summed once per study" in ended(counting)[0]


def test_a_plan_of_a_crashed_process_is_taken_up_whatever_hinders(counting: Requester) -> None:
    """Its announcement may have left: the round is driven to its end first."""
    first = planned(counting)
    assert hindrance(counting) is not None
    assert planned(counting) == first


def test_other_rules_know_no_counts(tmp_path: Path) -> None:
    with requester_bench(tmp_path, study_with(RuleName.FEDAVG), SMALL_MODEL) as made:
        counting = made.requester
        assert hindrance(counting) is None
        assert new_plan(counting).announcement.message.purpose is Purpose.UPDATE


def test_an_adaptive_optimisers_moments_are_digested_with_the_model(tmp_path: Path) -> None:
    with requester_bench(tmp_path, study_with(RuleName.FEDADAM), np.tile(SMALL_MODEL, 3)) as made:
        counting = made.requester
        before = new_plan(counting).announcement.message.model_digest
        assert counting.require_model().shape == SMALL_MODEL.shape
        kept = counting.require_kept().copy()
        kept[-1] += 1
        counting._kept = kept
        assert new_plan(counting).announcement.message.model_digest != before


def test_a_settled_round_of_counts_is_none_that_the_rule_sees(counting: Requester) -> None:
    """A released round raises every site's count of rounds taken part in; one of class counts does not."""
    before = counting.progress.rule_state
    measured = Measured(round=1, requester_norm=0.0, took_part=CONTRIBUTORS)
    counting.settle(planned(counting), Settled(RoundEnd.RELEASED, 1, "", (), None, None, measured=measured))
    assert counting.progress.rule_state == before
    assert all(site.rounds == 0 for site in before.sites)


# --- the list that is announced: the rule's, the last sum's, or none; the update stands in for the sites' -------------


ISOLATING = study().model_copy(update={"rounds": 50})
GRID = ISOLATING.parameters.weight_grid


@contextmanager
def bench_of(folder: Path, policy: SitePolicy | None = None, **changes: object) -> Iterator[RequesterBench]:
    with requester_bench(folder, ISOLATING.model_copy(update=changes), MODEL, policy) as made:
        yield made


@pytest.fixture
def isolating(tmp_path: Path) -> Iterator[RequesterBench]:
    with bench_of(tmp_path) as made:
        yield made


def numerators(plan: RoundPlan) -> dict[str, int]:
    return {weight.site: weight.numerator for weight in plan.weight_list.weights}


def settle(isolating: RequesterBench, plan: RoundPlan, *, far: float = 5.0, declines: tuple[Refused, ...] = ()) -> None:
    """The round's sum is released, if nobody declines; c1 is ``far`` from the requester, so its weight erodes."""
    told, number = plan.announcement.message, plan.announcement.message.round
    if declines:
        isolating.requester.settle(plan, Settled(RoundEnd.SKIPPED, 1, "too few", declines, None, 1.0))
        return
    past = evidence(told, plan.weight_list, (REQUESTER, *told.listed))
    owner = isolating.requester
    owner.average = lambda past: np.zeros(MODEL.size, dtype=np.float32)  # type: ignore[method-assign]
    owner.take_release(past)
    distances = tuple((site, far if site == "c1" else 0.0) for site in told.listed)
    measured = Measured(round=number, requester_norm=1.0, took_part=told.listed, distances=distances)
    owner.settle(plan, Settled(RoundEnd.RELEASED, 1, "", (), False, 1.0, past, measured))


def test_a_first_round_asks_for_everybody_and_says_how_well_it_hides_them(isolating: RequesterBench) -> None:
    plan = planned(isolating.requester)
    assert plan.announcement.message.least_contributors == len(CONTRIBUTORS)
    assert plan.isolation == pytest.approx(np.sqrt(2 / 3), abs=1e-4)
    settle(isolating, plan)
    (record,) = [event.record for event in isolating.events if event.record is not None]
    assert record.isolation == plan.isolation


def test_a_list_that_would_show_a_site_gives_way_to_the_last_one(isolating: RequesterBench) -> None:
    """The updates do not move at all here: whatever c1's weight loses, the difference of two sums shows it."""
    first = planned(isolating.requester)
    settle(isolating, first)
    eroded = {w.site: w.numerator for w in isolating.requester.rule.numerators(isolating.requester.progress.rule_state)}
    assert eroded["c1"] < GRID
    again = planned(isolating.requester)
    assert again.weight_list.weights == first.weight_list.weights
    assert again.isolation == pytest.approx(np.sqrt(2 / 3), abs=1e-4)
    settle(isolating, again)
    assert isolating.requester.progress.list_kept == 2
    assert {w.site: w.numerator for w in isolating.requester.rule.numerators(isolating.requester.progress.rule_state)}[
        "c1"
    ] < eroded["c1"], "the rule goes on in full precision"


def test_a_policy_that_asks_for_nothing_takes_the_rules_list(tmp_path: Path) -> None:
    with bench_of(tmp_path, SitePolicy(least_isolation=0.0)) as isolating:
        settle(isolating, planned(isolating.requester))
        plan = planned(isolating.requester)
        assert numerators(plan)["c1"] < GRID
        assert present(plan.isolation) < 1e-3
        assert plan.announcement.message.least_contributors == ISOLATING.parameters.least_contributors


def test_lists_change_as_seldom_as_the_study_says(tmp_path: Path) -> None:
    with bench_of(tmp_path, SitePolicy(least_isolation=0.0), list_every=3) as isolating:
        told = []
        for _ in range(7):
            plan = planned(isolating.requester)
            told.append(numerators(plan)["c1"])
            settle(isolating, plan)
        assert told[0] == told[1] == told[2] == GRID
        assert told[3] == told[4] == told[5] < GRID
        assert told[6] < told[5]


def test_a_dropped_site_may_not_leave_where_that_shows_it(isolating: RequesterBench) -> None:
    settle(isolating, planned(isolating.requester))
    isolating.requester.keep(dropped=("c1",))
    wanted = isolating.requester.study.parameters.model_copy(update={"least_contributors": 2})
    isolating.requester.study = isolating.requester.study.model_copy(update={"parameters": wanted})
    lenient = SitePolicy(least_contributors=1, largest_share=1.0)
    object.__setattr__(isolating.requester.context, "policy", lenient)
    assert isolating.requester.next_plan() is None
    end = present(isolating.requester.progress.end)
    assert (end.message.state, end.message.cause) == (StudyEndState.LOCAL_ONLY, EndCause.ISOLATION)
    assert end.message.clause is Clause.ISOLATION
    assert "relative error" not in end.message.reason, "the servers read the clause, not the figure"
    assert "relative error" in isolating.requester.progress.why


def test_a_list_that_a_site_declines_for_isolation_is_not_sent_again(tmp_path: Path) -> None:
    """The requester's own updates said yes, a site's said no: the site stays, the list goes."""
    with bench_of(tmp_path, SitePolicy(least_isolation=1e-9)) as isolating:
        first = planned(isolating.requester)
        settle(isolating, first)
        changed = planned(isolating.requester)
        assert numerators(changed)["c1"] < GRID
        refused = Refused("c2", ErrorCode.POLICY_REFUSAL, Clause.ISOLATION, "too small")
        settle(isolating, changed, declines=(refused,))
        assert isolating.requester.progress.dropped == ()
        again = planned(isolating.requester)
        assert again.weight_list.weights == first.weight_list.weights
        settle(isolating, again)
        assert isolating.requester.progress.exposing is None


def test_a_restart_plans_the_same_round(isolating: RequesterBench, tmp_path: Path) -> None:
    settle(isolating, planned(isolating.requester))
    plan = planned(isolating.requester)
    (isolating.requester.journal.round_folder(2) / "plan.json").unlink()
    assert planned(isolating.requester).weight_list.weights == plan.weight_list.weights
    assert len(isolating.requester.context.sums.known()) == 2


def test_an_update_of_zero_stands_in_for_nobody(isolating: RequesterBench) -> None:
    isolating.requester.learner._update[:] = 0  # type: ignore[attr-defined]
    plan = planned(isolating.requester)
    assert plan.isolation is None
    assert not isolating.requester.context.sums.known()
