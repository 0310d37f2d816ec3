"""When a site takes the model and the key that the requester sends it, and when not."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from client_agent.site.events import EventKind
from client_agent.study.attestation import needed
from protocol.errors import (
    BadSignature,
    BrokenSeal,
    Clause,
    PolicyRefusal,
)
from protocol.messages.control import Purpose, Study
from protocol.parameters import Needs
from protocol.policy.site_policy import SitePolicy
from protocol.rounds.evidence import PastRelease
from protocol.shared_model import model_digest_of
from protocol.sharing import Side
from tests.unit.client_agent.announced_rounds import (
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
from tests.unit.client_agent.benches import SITE_KEY, Bench, contributor_bench


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
