"""A contributor's class counts, own weight, and rules that select: views made by hand, no server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from client_agent.contributor.decisions import Decision
from client_agent.site.events import EventKind
from client_agent.site.letters import CountedClasses
from protocol.errors import ConfigurationError, ErrorCode, WrongRound
from protocol.messages.control import (
    LayerShape,
    ModelSpec,
    Purpose,
    RoundOutcome,
    RuleName,
    RuleSpec,
    Signed,
    Study,
    sign,
)
from protocol.parameters import Needs, StudyParameters
from protocol.policy.memory import LeftOut
from protocol.policy.site_policy import SitePolicy
from protocol.rules.fedavg import class_weight
from protocol.sharing import Side
from tests.unit.client_agent.announced_rounds import announced, post, views
from tests.unit.client_agent.benches import Bench, contributor_bench
from tests.unit.client_agent.federation import REQUESTER, keys, study, weight_list

SIZE = 20
GRID = 2
COUNTS = (10, 30)
TOTALS = (60, 80)
MODEL = np.linspace(-1, 1, SIZE, dtype=np.float32)


def study_with(rule: RuleName, grid: int = GRID) -> Study:
    own = rule.self_weighted
    parameters = StudyParameters(dimension=SIZE + own, clip_norm=4.0, weight_grid=grid, least_contributors=3)
    model = ModelSpec(kind="plugin", layers=(LayerShape(name="weight", shape=(SIZE,)),))
    return study(parameters=StudyParameters(dimension=SIZE, clip_norm=4.0, least_contributors=3)).model_copy(
        update={"parameters": parameters, "model": model, "rule": RuleSpec(name=rule)}
    )


WFEDAVG = study_with(RuleName.WFEDAVG)
COUNTED = CountedClasses(study_digest=WFEDAVG.digest(), round=1, totals=TOTALS)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with contributor_bench(tmp_path, WFEDAVG, MODEL, counts=COUNTS) as made:
        yield made


def by(signer: str, counted: CountedClasses = COUNTED) -> Signed[CountedClasses]:
    return sign(counted, signer, keys(signer).signing)


def decided(
    bench: Bench,
    number: int,
    *,
    counted: Signed[CountedClasses] | None = None,
    skipped: tuple[Signed[RoundOutcome], ...] = (),
    **changes: object,
) -> Decision:
    """The site's decision about a round with full weights, announced at both servers."""
    of = bench.contributor.study
    listed = weight_list(number, of.parameters.weight_grid, of.parameters.weight_grid, of.digest())
    post(bench, listed, skipped, counted=counted)
    return bench.contributor.decisions.decide(*views(announced(listed, MODEL, **{"opens": Needs.NOTHING, **changes})))


def test_class_counts_are_contributed_once_and_carry_no_weight(bench: Bench) -> None:
    decision = decided(bench, 1, purpose=Purpose.COUNTS)
    assert decision.accepted
    assert bench.contributor.weight_in(decision.announcement) is None
    assert bench.contributor.state.memory.counted == 1
    encoded = bench.contributor.encode(decision.announcement, GRID)
    assert not encoded.clipped
    vector = bench.contributor.encoded_file(decision.announcement)(0, SIZE + 1)
    assert vector.tolist() == [*COUNTS, *[0] * (SIZE - 1)]
    bench.contributor.save(memory=bench.contributor.state.memory.model_copy(update={"unsettled": None}))
    again = decided(bench, 2, purpose=Purpose.COUNTS)
    assert (again.accepted, again.code) == (False, ErrorCode.POLICY_REFUSAL)
    assert again.reason.startswith("counted_once")


def test_an_update_before_the_totals_are_known_is_declined(bench: Bench) -> None:
    decision = decided(bench, 2)
    assert (decision.accepted, decision.code) == (False, ErrorCode.ANNOUNCEMENT_MISMATCH)
    assert "before this site learned the class counts' sum" in decision.reason
    assert bench.decline(2).code == ErrorCode.ANNOUNCEMENT_MISMATCH


def test_a_decline_that_comes_too_late_is_decided_all_the_same(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the site would decide and send it again for ever, and not see that the study has ended."""

    def too_late(*_: object) -> None:
        raise WrongRound("the study is completed; nobody reads letters about it any more")

    monkeypatch.setattr(bench.servers[Side.A], "put_mail", too_late)
    decision = decided(bench, 2)
    assert (decision.accepted, decision.code) == (False, ErrorCode.ANNOUNCEMENT_MISMATCH)
    assert any("nobody reads letters" in text for text in bench.texts(EventKind.PROBLEM))
    assert decided(bench, 2) == decision


def test_a_site_that_missed_the_counts_takes_the_requesters_word(bench: Bench) -> None:
    decision = decided(bench, 2, counted=by(REQUESTER))
    assert decision.accepted
    assert bench.contributor.state.counted == COUNTED
    assert bench.contributor.weight_in(decision.announcement) == class_weight(COUNTS, TOTALS, GRID)


@pytest.mark.parametrize(
    ("counted", "code"),
    [
        (by("c2"), ErrorCode.BAD_SIGNATURE),
        (by(REQUESTER, COUNTED.model_copy(update={"study_digest": "00" * 32})), ErrorCode.ANNOUNCEMENT_MISMATCH),
        (by(REQUESTER, COUNTED.model_copy(update={"totals": (1, 2, 3)})), ErrorCode.ANNOUNCEMENT_MISMATCH),
    ],
)
def test_totals_that_are_not_the_requesters_are_refused(
    bench: Bench, counted: Signed[CountedClasses], code: ErrorCode
) -> None:
    assert decided(bench, 2, counted=counted).code == code
    assert bench.contributor.state.counted is None


def test_totals_other_than_those_it_opened_show_a_deviation(bench: Bench) -> None:
    bench.contributor.save(counted=COUNTED)
    assert decided(bench, 2, counted=by(REQUESTER)).accepted
    other = by(REQUESTER, COUNTED.model_copy(update={"totals": (61, 80)}))
    assert decided(bench, 3, counted=other).code == ErrorCode.MODEL_DIVERGED


def test_more_updates_than_the_study_has_rounds_are_declined(bench: Bench) -> None:
    """The counts took rounds 1 and 2, so the study's three updates are rounds 3 to 5."""
    bench.contributor.save(counted=COUNTED.model_copy(update={"round": 2}))
    assert WFEDAVG.rounds == 3
    assert decided(bench, 5).accepted
    beyond = decided(bench, 6)
    assert (beyond.code, "is update 4 of a study with 3 rounds" in beyond.reason) == (
        ErrorCode.ANNOUNCEMENT_MISMATCH,
        True,
    )


@pytest.mark.parametrize(
    ("purpose", "opens"),
    [
        (Purpose.COUNTS, Needs.NOTHING),
        (Purpose.SUMMARY, Needs.NOTHING),
        (Purpose.RANKING, Needs.INNER_PRODUCTS),
        (Purpose.MEASURE, Needs.PAIRS),
    ],
)
def test_a_round_of_a_purpose_that_the_study_does_not_have_is_declined(
    tmp_path: Path, purpose: Purpose, opens: Needs
) -> None:
    with contributor_bench(tmp_path, study_with(RuleName.FEDAVG), MODEL, SitePolicy(may_rank=True)) as bench:
        decision = decided(bench, 1, purpose=purpose, opens=opens)
    assert (decision.accepted, decision.code) == (False, ErrorCode.ANNOUNCEMENT_MISMATCH)
    assert f"{purpose.plan.does}, which this study does not" in decision.reason


@pytest.mark.parametrize(("grid", "accepted"), [(2, True), (32, False)])
def test_the_own_weight_is_held_against_the_smallest_others(tmp_path: Path, grid: int, accepted: bool) -> None:
    """40 of at most 50 samples: w = .8; two others of at least 1/grid each leave 60 % of the sum with 1/2, not 1/32."""
    with contributor_bench(tmp_path, study_with(RuleName.FEDAVG_BY_SAMPLES, grid), MODEL) as bench:
        decision = decided(bench, 1)
        assert bench.contributor.own_weight() == 0.8
        assert decision.accepted is accepted
        if accepted:
            return
        assert decision.reason.startswith("largest_share: site 'c1': weight 25.6 of 27.6")
        told = bench.decline().reason
    assert told == (
        "largest_share: the weight that this site gives itself is too large a part of the smallest sum it could end up "
        "in; a study whose weight_grid is at most 3 admits every weight"
    )


def test_class_counts_that_cannot_be_shared_are_not_told(tmp_path: Path) -> None:
    with contributor_bench(tmp_path, WFEDAVG, MODEL, counts=(10, 2**31)) as bench:
        accepted = decided(bench, 1, purpose=Purpose.COUNTS)
        declined = bench.contributor.carry_out(accepted, 1)
        assert (declined.accepted, declined.code) == (False, ErrorCode.UNUSABLE_UPDATE)
        assert str(2**31) in declined.reason
        assert not re.search(r"\d", bench.decline().reason)


def test_what_a_plugin_raises_in_a_round_stays_at_its_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> np.ndarray:
        raise ConfigurationError("plug-in /home/doctor/own.py, line 3: loss() fails: ValueError: patient 4711")

    with contributor_bench(tmp_path, study_with(RuleName.FEDAVG), MODEL) as bench:
        monkeypatch.setattr(bench.contributor.learner, "update", fails)
        declined = decided(bench, 1)
        assert (declined.accepted, declined.code) == (False, ErrorCode.CONFIGURATION)
        assert "patient 4711" in declined.reason
        told = bench.decline().reason
    assert told == "this site's files or settings keep it from this round; its own log says which"


@pytest.mark.parametrize(
    ("rule", "opens", "accepted"), [(RuleName.MULTI_KRUM, Needs.PAIRS, True), (RuleName.FEDAVG, Needs.NOTHING, False)]
)
def test_being_left_out_says_nothing_where_the_rule_selects(
    tmp_path: Path, rule: RuleName, opens: Needs, accepted: bool
) -> None:
    with contributor_bench(tmp_path, study_with(rule), MODEL) as bench:
        memory = bench.contributor.state.memory
        left_out = (LeftOut(site="c2", rounds=(1, 2)),)
        bench.contributor.save(memory=memory.model_copy(update={"left_out": left_out}))
        assert decided(bench, 3, opens=opens).accepted is accepted
