"""Side B decides in ``protocol/rounds/side_b.py`` what its server decided before: 10,000 rounds, every message of each.

A trace is one round at side B: messages come in and out of turn, again, and with anything in them changed.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from protocol.errors import MoietyError
from protocol.rounds import side_b
from protocol.rounds.agree import agree, nonce_commitment, transcript
from protocol.rounds.side_a import outcome_of
from protocol.rounds.side_b import Move
from protocol.rounds.states import RoundKey, Standing
from protocol.rounds.transitions import TRANSITIONS, RoundEvent, step
from protocol.wire.messages import (
    AgreedSet,
    Announcement,
    CollectedContribution,
    OutcomeCause,
    ReleaseSet,
    RoundOutcome,
    RoundState,
    Signed,
    SumRelease,
)
from protocol.wire.peer_messages import CorrelationRef, LockRequest, ProductsHeader
from servers.rounds.standing import standing
from servers.store.interface import RoundRecord
from tests.unit.parties import REQUESTER, SITES
from tests.unit.rounds import old_side_b as old
from tests.unit.rounds.test_side_a import ANNOUNCED, CLOSES_S, DIGEST, HELD, OTHER, ROSTER, STUDY

TRACES = 10_000
MESSAGES = 7
NONCES = tuple(bytes([number]) * 32 for number in range(3))
ENDS = {
    RoundState.SKIPPED: OutcomeCause.QUERIES_MISSING,
    RoundState.BURNT: OutcomeCause.CORRELATIONS_LOST,
    RoundState.RANKED: OutcomeCause.RANKED,
}
REACHED = {
    "lock_request": 9,
    "agreed_set": 10,
    "challenge": 10,
    "products": 12,
    "release_set": 16,
    "sum_release": 9,
    "round_outcome": 8,
}
"""How many different answers, errors and their texts each message gets in the traces: all that there are."""
STRANGE = {"study_digest": OTHER, "round": 7, "attempt": 7}


class Trace:
    """One round at side B, and how both sets of decisions are asked about it."""

    def __init__(self, seed: int, seen: Counter[str]) -> None:
        self.rng, self.seen = random.Random(seed), seen
        self.of = of = self.rng.choice(ANNOUNCED)
        key = RoundKey(STUDY, of.round, 1)
        self.record = RoundRecord(key, RoundState.ANNOUNCED, Signed[Announcement](message=of), CLOSES_S)
        self.held = self.contributions() if not of.protection.plan.keyed else ()
        if self.held:
            self.change(state=RoundState.COLLECTING)
        listed = self.contributions() if of.protection.plan.keyed or self.rng.random() < 0.1 else self.held
        self.agreed = agree(of, 1, ROSTER, listed, listed)
        self.toss = transcript(of.round, self.agreed.digest(), NONCES[0], NONCES[1])

    def contributions(self) -> tuple[CollectedContribution, ...]:
        return tuple(HELD[self.of, site, self.often(0.05)] for site in SITES if self.often(0.9))

    def often(self, probability: float) -> bool:
        return self.rng.random() < probability

    def change(self, **changes: Any) -> None:
        self.record = replace(self.record, **changes)

    def run(self) -> None:
        makers = (self.lock, self.agreed_set, self.challenge, self.products, self.release_set, self.sum, self.outcome)
        usual = (1, 4, 5) if self.of.protection.plan.keyed else (0, 2, 3, 4)
        for turn in range(MESSAGES):
            place = usual[turn % len(usual)] if self.often(0.7) else self.rng.randrange(len(makers))
            message = makers[place]()
            said = self.ask(message)
            if said is not None:
                self.carry_out(message, said)
            if self.record.transcript is not None and self.often(0.5):
                self.change(query_header=cast(Any, SimpleNamespace()))
            if self.of.protection.plan.keyed and self.record.state is RoundState.MEASURED and self.often(0.02):
                self.change(state=RoundState.RELEASED)  # as a masked sum would, which such a round never has

    def ask(self, message: Any) -> old.Decision | None:
        """What both say, or None where both refuse with the same error."""
        state = self.standing()
        expected = caught(lambda: old.side_b(self.record, self.held, message, ROSTER))
        assert caught(lambda: self.new(state, message)) == expected, f"{self.record} {message}"
        if isinstance(message, ProductsHeader):
            assert caught(lambda: (side_b.opened(state),)) == caught(lambda: (old.still_locked(self.record),))
        refusal = re.sub(rf"round {self.of.round}|{self.record.key.label}", "round", " ".join(map(str, expected)))
        self.seen[f"{message.KIND}: {refusal}"] += 1
        return None if len(expected) > 1 else expected

    def new(self, state: Standing, message: Any) -> old.Decision:
        if isinstance(message, SumRelease | RoundOutcome):
            side_b.require_named(message, self.record.key)
        answer = side_b.answer(state, message, ROSTER)
        return (answer.event,) if isinstance(answer, Move) else (answer.name.lower(),)

    def standing(self) -> Standing:
        held = [SimpleNamespace(site=one.site, header=one) for one in self.held]
        store = SimpleNamespace(contributions=lambda _: held, contributions_held=lambda _: len(held))
        server = SimpleNamespace(store=store, roster=ROSTER, clock=lambda: CLOSES_S)
        return standing(cast(Any, server), self.record)

    # --- what side A and the requester say ----------------------------------------------------------------------------

    def altered(self, message: Any, *changes: dict[str, Any]) -> Any:
        if self.often(0.75):
            return message
        one = self.rng.choice([*({field: value} for field, value in STRANGE.items()), *changes])
        return message.model_copy(update={field: value for field, value in one.items() if hasattr(message, field)})

    def agreed_set(self) -> AgreedSet:
        of = self.agreed.contributions
        sets = (of[::-1], of[1:], of[:1], of[:2], tuple(HELD[self.of, c.site, True] for c in of))
        other = HELD[ANNOUNCED[0] if self.of is not ANNOUNCED[0] else ANNOUNCED[1], SITES[0], False]
        changes = [{"contributions": contributions} for contributions in (*sets, (other, *of[1:]))]
        made: AgreedSet = self.altered(self.agreed, {"announcement_digest": OTHER}, *changes)
        return made

    def lock(self) -> LockRequest:
        commitment = nonce_commitment(self.of.round, self.agreed.digest(), NONCES[2 * self.often(0.1)])
        return LockRequest(agreed_set=Signed[AgreedSet](message=self.agreed_set()), commitment_a=commitment)

    def challenge(self) -> Any:
        if self.often(0.8):
            return self.toss
        made = [
            transcript(self.of.round, self.agreed.digest(), *nonces) for nonces in ((NONCES[2], NONCES[1]), NONCES[1:])
        ]
        return self.rng.choice((*made, self.toss.model_copy(update={"challenge": OTHER})))

    def products(self) -> ProductsHeader:
        sites = self.agreed.sites[self.often(0.1) :]
        refs = tuple(CorrelationRef(site=site, session=DIGEST, batch=0, index=0) for site in sites)
        return ProductsHeader(transcript_digest=self.toss.digest() if self.often(0.9) else OTHER, correlations=refs)

    def release_set(self) -> ReleaseSet:
        sites = self.agreed.sites
        made = ReleaseSet(
            study_digest=STUDY, round=self.of.round, attempt=1, agreed_set_digest=self.agreed.digest(), sites=sites
        )
        fewer = tuple(site for site in sites if site != REQUESTER)
        wrong = [{"sites": chosen} for chosen in (sites[::-1], fewer, sites[:1], sites[:-1])]
        released: ReleaseSet = self.altered(made, {"agreed_set_digest": OTHER}, {"failed_check": sites[1:2]}, *wrong)
        return released

    def sum(self) -> SumRelease:
        chosen = self.record.release_set
        release = DIGEST if chosen is None else chosen.message.digest()
        made = SumRelease(study_digest=STUDY, round=self.of.round, attempt=1, release_digest=release, sum_digest=DIGEST)
        signed: SumRelease = self.altered(made, {"release_digest": OTHER}, {"sum_digest": OTHER})
        return signed

    def outcome(self) -> RoundOutcome:
        state = self.rng.choice(list(ENDS))
        signed: RoundOutcome = self.altered(outcome_of(RoundKey(STUDY, self.of.round, 1), state, ENDS[state]))
        return signed

    # --- what was decided is done -------------------------------------------------------------------------------------

    def carry_out(self, message: Any, said: old.Decision) -> None:
        if said[0] == "again":
            return
        if isinstance(said[0], RoundEvent):
            if (self.record.state, said[0]) not in TRANSITIONS:
                return  # refused by the table, as ever
            self.change(state=step(self.record.progress, said[0]).state)
        match message:
            case LockRequest():
                self.change(agreed_set=message.agreed_set, own_nonce=NONCES[1], peer_commitment=message.commitment_a)
            case AgreedSet():
                self.change(agreed_set=Signed[AgreedSet](message=message))
            case ReleaseSet():
                self.change(release_set=Signed[ReleaseSet](message=message))
            case SumRelease():
                self.change(sum_release=Signed[SumRelease](message=message))
            case RoundOutcome():
                self.change(outcome=Signed[RoundOutcome](message=message))
            case ProductsHeader():
                if self.often(0.2) and not self.of.protection.plan.keyed:
                    self.change(state=RoundState.LOCKED)  # the process died before its opening was stored
            case _:
                kept = message.model_copy(update={"challenge": OTHER}) if self.often(0.03) else message
                self.change(transcript=Signed[Any](message=kept))


def caught(decide: Callable[[], old.Decision]) -> old.Decision:
    """The answer, or the error's kind and text."""
    try:
        return decide()
    except MoietyError as error:
        return (type(error).__name__, error.detail)


def test_ten_thousand_rounds_are_answered_as_before() -> None:
    seen: Counter[str] = Counter()
    for seed in range(TRACES):
        Trace(seed, seen).run()
    assert Counter(line.split(":")[0] for line in seen) == REACHED, sorted(seen)
