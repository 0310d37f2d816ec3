"""A small federation's keys and messages for the unit tests of the agent."""

from __future__ import annotations

from typing import Any, TypeVar

from harness.engine.parties import Parties, SiteEntry, make_parties
from protocol.channel.message import Message
from protocol.messages.control import (
    Announcement,
    EndCause,
    LayerShape,
    ModelSpec,
    Roster,
    RoundOutcome,
    RuleName,
    RuleSpec,
    Signed,
    Study,
    StudyEnd,
    StudyEndState,
    StudyState,
    StudyView,
    WeightList,
    countersign,
    sign,
)
from protocol.parameters import StudyParameters
from protocol.roster.keyfile import PartyKeys
from protocol.rounds.evidence import PastRelease
from protocol.sharing import Side
from tests.kit import round_messages
from tests.kit.round_messages import agreed_set, announcement_of, outcome, release_set
from tests.kit.studies import study_of

REQUESTER = "r0"
CONTRIBUTORS = ("c1", "c2", "c3")
DIGEST = "ab" * 32
PARTIES: Parties = make_parties(
    "unit", REQUESTER, [SiteEntry(name, 50) for name in (REQUESTER, *CONTRIBUTORS)], bytes(32)
)
ROSTER: Roster = PARTIES.roster.message
PARAMETERS = StudyParameters(dimension=1000, clip_norm=4.0, least_contributors=3)
LAYERS = [("weight", 900), ("bias", 100)]


def keys(name: str) -> PartyKeys:
    return PARTIES.keys_of(name)


def operator_keys(side: Side) -> PartyKeys:
    return keys(ROSTER.operator(side).name)


def study(parameters: StudyParameters = PARAMETERS, seed: int | None = 1) -> Study:
    layers = (LayerShape(name="weight", shape=(parameters.dimension,)),)
    erosion, model = RuleSpec(name=RuleName.WEIGHT_EROSION), ModelSpec(kind="plugin", layers=layers)
    return study_of(model, roster_digest=ROSTER.digest(), parameters=parameters, rule=erosion, rounds=3, seed=seed)


def layered(of: Study) -> Study:
    """The same study of a model with several layers."""
    layers = tuple(LayerShape(name=name, shape=(size,)) for name, size in LAYERS)
    return of.model_copy(update={"model": of.model.model_copy(update={"layers": layers})})


def weight_list(
    round_number: int = 1, numerators: int | tuple[int, ...] = 16, grid: int = 32, study_digest: str = DIGEST
) -> WeightList:
    """Everybody's weights over the grid; one number stands for all."""
    each = (numerators,) * len(CONTRIBUTORS) if isinstance(numerators, int) else numerators
    listed = dict(zip(CONTRIBUTORS, each, strict=True))
    return round_messages.weight_list(study_digest, listed, round=round_number, grid=grid)


def announcement(weights: WeightList | None = None, **changes: Any) -> Announcement:
    """The round of these weights, whose distances are opened unless ``changes`` say otherwise."""
    usual: dict[str, Any] = {"listed": CONTRIBUTORS, "model_digest": DIGEST, "closes_at_s": 10**9}
    return announcement_of(weights or weight_list(), **(usual | changes))


def evidence(
    on: Announcement, weights: WeightList, agreed: tuple[str, ...], sites: tuple[str, ...] | None = None
) -> PastRelease:
    """A release of ``sites``, all that were agreed where none are named, with everybody's signatures."""
    held = agreed_set(on, agreed)
    chosen = release_set(held, agreed if sites is None else sites)
    return PastRelease(
        announcement=on,
        weight_list=weights,
        agreed_set=signed_by_both(held),
        release_set=sign(chosen, REQUESTER, keys(REQUESTER).signing),
    )


def release(round_number: int = 1, sites: tuple[str, ...] = (REQUESTER, *CONTRIBUTORS)) -> PastRelease:
    """One released round, in which everybody was agreed on."""
    weights = weight_list(round_number)
    return evidence(announcement(weights), weights, (REQUESTER, *CONTRIBUTORS), sites)


M = TypeVar("M", bound=Message)


def signed_by_both(agreed: M) -> Signed[M]:
    a, b = operator_keys(Side.A), operator_keys(Side.B)
    return countersign(sign(agreed, a.name, a.signing), b.name, b.signing)


def ended_round(
    study_digest: str, number: int = 1, signers: tuple[Side, ...] = tuple(Side), /, **changes: Any
) -> Signed[RoundOutcome]:
    """A round's signed end: a skip, unless ``changes`` say otherwise."""
    signed = Signed[RoundOutcome](message=outcome(study_digest, **({"round": number} | changes)))
    for side in signers:
        signed = countersign(signed, operator_keys(side).name, operator_keys(side).signing)
    return signed


def study_view(study_digest: str = DIGEST, **shown: object) -> StudyView:
    """One server's view of the study: nobody is ready and no letter waits, unless ``shown`` says otherwise."""
    fields = {"study": "unit", "study_digest": study_digest, "cursor": 1, "ready": (), "mail": ()}
    return StudyView(**{**fields, **shown})  # type: ignore[arg-type]


def study_end(
    study_digest: str, state: StudyEndState = StudyEndState.COMPLETED, cause: EndCause = EndCause.ALL_ROUNDS_DONE
) -> Signed[StudyEnd]:
    """The requester's signed end of a study."""
    end = StudyEnd(study_digest=study_digest, state=state, cause=cause, reason="as asked")
    return sign(end, REQUESTER, keys(REQUESTER).signing)


def ended_as(state: StudyState, study_digest: str) -> Signed[StudyEnd] | None:
    """The requester's signed end, None for a study that goes on."""
    return study_end(study_digest, StudyEndState(state.value), EndCause.CANCELLED) if state.ended else None
