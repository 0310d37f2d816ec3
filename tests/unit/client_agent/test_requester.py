"""The requester keeps and encloses what shows a round's end to sites that missed it: no server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from client_agent.requester.admission import welcome
from client_agent.requester.own_models import keep_best
from client_agent.requester.plan import hindrance, new_plan
from client_agent.requester.postbox import send_weights
from client_agent.requester.round import RequesterRound
from client_agent.requester.run import Requester
from client_agent.requester.state import Refused, RoundPlan, Settled
from client_agent.site.events import Absence, Absent, EventKind, RoundEnd
from client_agent.site.letters import Attestation, WeightMail, Welcome
from client_agent.site.models import Kept, KeptModel, kept_model, load_kept
from client_agent.study.attestation import checkpoint_digest
from harness.federation.clocks import ToldClock
from protocol.errors import Clause, ErrorCode, PolicyRefusal
from protocol.messages.control import (
    AgreedSet,
    EndCause,
    OutcomeCause,
    RoundOutcome,
    RoundState,
    RoundView,
    Signed,
    StudyView,
    require_signatures,
    sign,
)
from protocol.messages.letter import open_letter, seal_letter
from protocol.rounds.evidence import PastRelease
from protocol.sharing import Side
from tests.kit.present import present
from tests.unit.client_agent.benches import FakeServer, RequesterBench, requester_bench
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
    weight_list,
)

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


def planned(requester: Requester) -> RoundPlan:
    return present(requester.next_plan())


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
    later = (
        Clause.MEMORY_UNRECONCILED,
        Clause.BUDGET_UNRECONCILED,
        Clause.KEYS_RENEWED,
        Clause.QUIET_HOURS,
    )
    lacks = (
        Clause.OUTCOME_UNKNOWN,
        Clause.MODEL_BEHIND,
        Clause.ISOLATION,
        Clause.PAUSED,
        *later,
    )
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
    view = StudyView(study="unit", study_digest=DIGEST, cursor=1, ready=(), mail=tuple(mail))
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
