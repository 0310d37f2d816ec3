"""What losses are made of; a requester that cannot rank anybody, and a site that lets nobody rank it, are named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from client_agent.learning.ridge import JudgingForm, judging_form, ridge_model
from client_agent.requester.measuring.query import make_judging
from client_agent.study.ranking import losses_of, spec_of
from client_agent.study.refusals import public_text
from protocol.errors import ProtocolViolation, UnusableUpdate
from protocol.messages.control import RuleName, StudyEndState
from protocol.mpc.measurement import OpenedSite
from protocol.sharing import Side
from tests.unit.client_agent.benches import FakeLearner, RequesterBench, requester_bench
from tests.unit.client_agent.test_decisions import MODEL, study_with
from tests.unit.client_agent.test_ranking import CLASSES, EQUAL_COLUMNS, JUDGED, MODELS, STUDY, WILLING, ranking_study


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RequesterBench]:
    monkeypatch.setattr(FakeLearner, "ridge", lambda _, penalty: MODELS, raising=False)
    monkeypatch.setattr(FakeLearner, "judging_form", lambda _: judging_form(JUDGED, None, CLASSES), raising=False)
    with requester_bench(tmp_path, STUDY, MODEL, WILLING) as made:
        yield made


def test_the_requester_begins_no_study_without_examples_to_judge_by(
    bench: RequesterBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeLearner, "judging_form", _nothing)
    monkeypatch.setattr(bench.requester, "prepare", lambda: None)
    bench.requester.save(model_version=None)
    with pytest.raises(UnusableUpdate, match="hold NaN"):
        bench.requester.run()
    assert bench.servers[Side.A].sent == {}


def test_nor_without_a_model_of_its_own(bench: RequesterBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeLearner, "ridge", lambda _, penalty: ridge_model(EQUAL_COLUMNS, CLASSES, penalty))
    monkeypatch.setattr(bench.requester, "prepare", lambda: None)
    bench.requester.save(model_version=None)
    with pytest.raises(UnusableUpdate, match="rounding hides the penalty"):
        bench.requester.run()
    assert bench.servers[Side.A].sent == {}


def test_data_that_became_unusable_after_the_start_end_the_study(
    bench: RequesterBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart in a begun study: it ends as failed at both servers, it does not wait for ever."""
    requester = bench.requester
    monkeypatch.setattr(FakeLearner, "judging_form", _nothing)
    for name in ("prepare", "_create", "_deliver_end"):
        monkeypatch.setattr(requester, name, lambda: None)
    for name in ("start", "close"):
        monkeypatch.setattr(requester.watch, name, lambda: None)
    monkeypatch.setattr(requester, "_shared_part", lambda: make_judging(requester, 1))
    requester.run()
    end = requester.progress.end
    assert end is not None
    assert (end.message.state, end.message.reason) == (
        StudyEndState.FAILED,
        "the requester's update cannot be shared",
    )


def _nothing(_: object) -> JudgingForm:
    raise UnusableUpdate("the requester's examples hold NaN")


def test_losses_are_put_in_order_and_failed_sites_named() -> None:
    opened = [OpenedSite("c1", True, inner_product=4.0), OpenedSite("c2", False), OpenedSite("c3", True, None, 2.0)]
    losses, failed = losses_of(opened, 1.0, 2.0)
    assert [(one.site, one.loss) for one in losses] == [("c3", 2.0), ("c1", 3.0)]
    assert failed == ("c2",)


def test_a_study_that_ranks_nobody_has_no_penalty() -> None:
    with pytest.raises(ProtocolViolation, match="ranks no sites"):
        spec_of(study_with(RuleName.FEDAVG))


@pytest.mark.parametrize(
    ("rule", "opened"),
    [
        (RuleName.FEDAVG, "ranking open inner_products"),
        (RuleName.WEIGHT_EROSION, "rule open distances or its ranking open inner_products"),
    ],
)
def test_a_study_that_a_site_refuses_names_the_ranking_in_public(rule: RuleName, opened: str) -> None:
    said = public_text(ranking_study(rule), "c2")
    assert said == f"site 'c2' does not let the study's {opened} about it; no round was begun"
