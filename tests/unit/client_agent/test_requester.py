"""What the requester keeps and encloses, so that sites which missed a round's end can be shown it: no server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client_agent.events import RoundEnd
from client_agent.mail import PastRelease, WeightMail, Welcome, open_letter
from client_agent.planning import RoundPlan, new_plan
from client_agent.requester import Requester
from client_agent.requester_round import RequesterRound
from client_agent.settled import Refused, Settled
from protocol.errors import ErrorCode, PolicyRefusal, ProtocolViolation
from protocol.policy import Clause
from protocol.sharing import Side
from protocol.wire.authentic import countersign, require_signatures, sign
from protocol.wire.messages import OutcomeCause, RoundOutcome, RoundState, RoundView, Signed
from tests.unit.client_agent.benches import requester_bench
from tests.unit.client_agent.federation import (
    CONTRIBUTORS,
    PARAMETERS,
    REQUESTER,
    ROSTER,
    keys,
    operator_keys,
    release,
    study,
)

STUDY = study().model_copy(update={"rounds": 200})
DIGEST = STUDY.digest()


@pytest.fixture
def requester(tmp_path: Path) -> Iterator[Requester]:
    with requester_bench(tmp_path, STUDY, np.ones(PARAMETERS.dimension, dtype=np.float32)) as bench:
        yield bench.requester


def skip_of(number: int, **changes: object) -> Signed[RoundOutcome]:
    fields = {"study_digest": DIGEST, "round": number, "attempt": 1, "outcome": RoundState.SKIPPED}
    fields["cause"] = OutcomeCause.QUERIES_MISSING
    message = RoundOutcome(**{**fields, **changes})  # type: ignore[arg-type]
    a, b = operator_keys(Side.A), operator_keys(Side.B)
    return countersign(sign(message, a.name, a.signing), b.name, b.signing)


def skipped(number: int, declines: tuple[Refused, ...] = ()) -> Settled:
    return Settled(RoundEnd.SKIPPED, 1, "short", declines, None, None, skip=skip_of(number))


def planned(requester: Requester) -> RoundPlan:
    plan = requester._plan()
    assert plan is not None
    return plan


def letter(requester: Requester, form: type, kind: str, topic: str, site: str, number: int):
    (sealed,) = requester.context.clients[Side.A].sent[f"{topic}/{site}"]  # type: ignore[attr-defined]
    return open_letter(sealed, form, kind, DIGEST, REQUESTER, site, number, keys(site).sealing)


def test_a_skip_is_settled_and_enclosed_until_the_next_release(requester: Requester) -> None:
    first = planned(requester)
    assert first.skipped == ()
    requester.keep(next_round=2)
    with pytest.raises(PolicyRefusal, match="outcome_unknown"):
        new_plan(requester)
    requester.keep(next_round=1)
    requester._settle(first, skipped(1))
    second = planned(requester)
    assert second.skipped == (skip_of(1),)
    mail = WeightMail(weight_list=second.weight_list, previous=second.previous, skipped=second.skipped)
    requester.postbox.send_weights(mail, CONTRIBUTORS)
    assert letter(requester, WeightMail, "weights", "weights-2", "c1", 2).skipped == (skip_of(1),)
    past = release(2).past
    discarded = Settled(RoundEnd.DISCARDED, 1, "", (), None, None, past=past)
    requester._settle(second, discarded)
    assert (requester.progress.skipped, requester.progress.previous) == ((), past)


def test_only_the_last_skips_are_kept(requester: Requester) -> None:
    for number in range(1, 41):
        requester.keep(**requester.after_skip(skipped(number), number))
    assert [skip.message.round for skip in requester.progress.skipped] == list(range(9, 41))


@pytest.mark.parametrize("clause", list(Clause))
def test_a_site_without_the_evidence_stays_listed(requester: Requester, clause: Clause) -> None:
    """Whatever the text says: only the clause decides."""
    said = f"{Clause.OUTCOME_UNKNOWN.value}: the requester's own contribution is missing"
    changes = requester._after_declines(skipped(1, (Refused("c2", ErrorCode.POLICY_REFUSAL, clause, said),)))
    lacks = (Clause.OUTCOME_UNKNOWN, Clause.MODEL_BEHIND, Clause.MEMORY_UNRECONCILED, Clause.ISOLATION)
    assert changes["dropped"] == (() if clause in lacks else ("c2",))


def test_an_unusable_update_drops_a_site_the_second_time(requester: Requester) -> None:
    refused = Refused("c2", ErrorCode.UNUSABLE_UPDATE, None, "NaN")
    first = requester._after_declines(skipped(1, (refused,)))
    assert first == {"unusable": ("c2",), "dropped": ()}
    requester.keep(**first)
    assert requester._after_declines(skipped(2, (refused,)))["dropped"] == ("c2",)


def test_sites_that_fell_behind_are_shown_the_release_they_missed(requester: Requester) -> None:
    plan = planned(requester)
    past: PastRelease = release(1).past
    settled = replace(
        skipped(1, (Refused("c2", ErrorCode.POLICY_REFUSAL, Clause.MODEL_BEHIND, "why"),)),
        past=past,
        end=RoundEnd.DISCARDED,
    )
    requester._settle(plan, settled)
    signed = letter(requester, Signed[Welcome], "welcome", "welcome-0", "c2", 0)
    assert require_signatures(signed, ROSTER, (REQUESTER,)).previous == past
    requester.welcome(["c1"])
    assert letter(requester, Signed[Welcome], "welcome", "welcome-0", "c1", 0).message.previous is None


def seen(plan: RoundPlan, outcome: Signed[RoundOutcome] | None) -> RoundView:
    number = plan.announcement.message.round
    return RoundView(round=number, attempt=1, state=RoundState.SKIPPED, announcement=plan.announcement, outcome=outcome)


def test_a_skip_counts_once_either_view_shows_both_signatures(requester: Requester) -> None:
    plan = planned(requester)
    turn = RequesterRound(requester, plan)
    one = sign(skip_of(1).message, operator_keys(Side.A).name, operator_keys(Side.A).signing)
    assert turn._skipped(seen(plan, one), seen(plan, None)) is None
    for at_a, at_b in ((one, skip_of(1)), (skip_of(1), None)):
        settled = turn._skipped(seen(plan, at_a), seen(plan, at_b))
        assert settled is not None
        assert (settled.end, settled.reason, settled.skip) == (RoundEnd.SKIPPED, skip_of(1).message.reason, skip_of(1))
    with pytest.raises(ProtocolViolation, match="no skip of this study's round 1"):
        turn._skipped(seen(plan, skip_of(2)), seen(plan, None))
