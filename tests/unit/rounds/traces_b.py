"""Seeded rounds at side B, message by message: what it stood for, and what ``protocol/rounds/side_b.py`` answered.

A trace is one round: messages come in and out of turn, again, and with anything in them changed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from protocol.errors import MoietyError
from protocol.messages.control import (
    AgreedSet,
    Announcement,
    CollectedContribution,
    Go,
    OutcomeCause,
    OutputCommitment,
    ReleaseSet,
    RoundOutcome,
    RoundState,
    Signed,
    SumRelease,
    TagCheck,
    TagSeed,
    TagsFailed,
)
from protocol.messages.peer import CorrelationRef, HandOver, LockRequest, ProductsHeader
from protocol.roster.chain import RosterChain
from protocol.rounds import side_b
from protocol.rounds.agreement import agree, nonce_commitment, transcript
from protocol.rounds.side_a import outcome_of
from protocol.rounds.side_b import Answer, Message, Move, Reply
from protocol.rounds.states import TRANSITIONS, RoundKey, Standing
from protocol.sharing import Side
from protocol.tags import check_of, commitment_to, judged, shown_seed
from servers.rounds.state import standing
from servers.store.records import RoundRecord
from tests.unit.parties import REQUESTER, SITES
from tests.unit.rounds.traces_a import ANNOUNCED, CLOSES_S, DIGEST, HELD, OTHER, ROSTER, SEED_OF_TAGS, STUDY

MESSAGES = 7
NONCES = tuple(bytes([number]) * 32 for number in range(3))
ENDS = {
    RoundState.SKIPPED: OutcomeCause.QUERIES_MISSING,
    RoundState.BURNT: OutcomeCause.CORRELATIONS_LOST,
    RoundState.RANKED: OutcomeCause.RANKED,
    RoundState.CLOSED: OutcomeCause.CLOSED,
}
STRANGE = {"study_digest": OTHER, "round": 7, "attempt": 7}


@dataclass(frozen=True)
class Answered:
    """One message of a trace and what became of it; an error where it was refused."""

    record: RoundRecord
    state: Standing
    message: Message
    answer: Answer | MoietyError

    @property
    def taken(self) -> bool:
        """Neither the answer nor the table of states refuses it."""
        if isinstance(self.answer, Move):
            return (self.record.state, self.answer.event) in TRANSITIONS
        return isinstance(self.answer, Reply)

    @property
    def said(self) -> str:
        if isinstance(self.answer, MoietyError):
            key = self.record.key
            detail = re.sub(rf"round {key.round}|{key.label}", "round", self.answer.detail)
            return f"{type(self.answer).__name__}: {detail}"
        return (self.answer.event if isinstance(self.answer, Move) else self.answer).name


class Trace:
    """One round at side B, announced as one of ``announced``."""

    def __init__(self, seed: int, announced: tuple[Announcement, ...] = ANNOUNCED) -> None:
        self.rng = random.Random(seed)
        self.answered: list[Answered] = []
        self.of = of = self.rng.choice(announced)
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

    def run(self) -> list[Answered]:
        makers: tuple[Callable[[], Message], ...] = (
            self.lock,
            self.agreed_set,
            self.challenge,
            self.products,
            self.release_set,
            self.sum,
            self.outcome,
        )
        usual: tuple[int, ...] = (1, 4, 5) if self.of.protection.plan.keyed else (0, 2, 3, 4)
        if self.of.tagged:
            makers, usual = (*makers, self.seed, self.verdict, self.hand_over), (0, 2, 3, 4, 7, 8, 9)
        for turn in range(3 * MESSAGES if self.of.tagged else MESSAGES):
            place = usual[turn % len(usual)] if self.often(0.7) else self.rng.randrange(len(makers))
            message = makers[place]()
            self.carry_out(self.ask(message))
            if self.record.transcript is not None and self.often(0.5):
                self.change(query_header=cast(Any, SimpleNamespace()))
            if self.of.protection.plan.keyed and self.record.state is RoundState.MEASURED and self.often(0.02):
                self.change(state=RoundState.RELEASED)  # as a masked sum would, which such a round never has
            if self.of.tagged and self.record.release_set is not None and self.often(0.8):
                self.commit(self.record.release_set.message)
        return self.answered

    def ask(self, message: Message) -> Answered:
        state = self.standing()
        try:
            if isinstance(message, SumRelease | RoundOutcome):
                side_b.require_named(message, self.record.key)
            answer: Answer | MoietyError = side_b.answer(state, message, ROSTER)
        except MoietyError as error:
            answer = error
        self.answered.append(Answered(self.record, state, message, answer))
        return self.answered[-1]

    def standing(self, now_s: float = CLOSES_S, declined: tuple[str, ...] = ()) -> Standing:
        held = [SimpleNamespace(site=one.site, header=one) for one in self.held]
        store = SimpleNamespace(
            contributions=lambda _: held,
            contributors_of=lambda _: tuple(one.site for one in held),
            mail_of=lambda *_: [SimpleNamespace(sender=site) for site in declined],
        )
        server = SimpleNamespace(
            store=store, roster=ROSTER, chain=RosterChain(Signed(message=ROSTER, signatures=())), clock=lambda: now_s
        )
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

    # --- tags ---------------------------------------------------------------------------------------------------------

    def commit(self, release: ReleaseSet) -> None:
        """The masked sum has come, or left."""
        if self.record.state is RoundState.MEASURED and self.record.outcome is None:
            committed = commitment_to(release, Side.B, DIGEST)
            self.change(state=RoundState.COMMITTED, commitment=Signed[OutputCommitment](message=committed))

    def seed(self) -> TagSeed:
        made = TagSeed(study_digest=STUDY, round=self.of.round, attempt=1, seed=shown_seed(SEED_OF_TAGS).hex())
        shown: TagSeed = self.altered(made, {"seed": OTHER})
        return shown

    def verdict(self) -> Go | TagsFailed:
        """Over this side's check, as far as it is made, and one of A's: what an honest A would say, or anything."""
        release = self.release_set() if self.record.release_set is None else self.record.release_set.message
        a, b = (commitment_to(release, side, DIGEST) for side in Side)
        off = np.array([1, 2], dtype=np.uint64)
        at_a, at_b = check_of(a, -off if self.often(0.7) else off), check_of(b, off if self.often(0.9) else -off)
        commitments = Signed[OutputCommitment](message=a), Signed[OutputCommitment](message=b)
        return judged(release, commitments, (Signed[TagCheck](message=at_a), Signed[TagCheck](message=at_b)))

    def hand_over(self) -> HandOver:
        kept = self.record.go
        made = self.verdict()
        if kept is not None and self.often(0.7):
            return HandOver(go=kept)
        return HandOver(go=Signed[Go](message=Go(**dict(made))))

    def outcome(self) -> RoundOutcome:
        state = self.rng.choice(list(ENDS))
        signed: RoundOutcome = self.altered(outcome_of(RoundKey(STUDY, self.of.round, 1), state, ENDS[state]))
        return signed

    # --- what was decided is done -------------------------------------------------------------------------------------

    def carry_out(self, one: Answered) -> None:
        if one.answer is Reply.AGAIN or not one.taken:
            return
        if isinstance(one.answer, Move):
            self.change(state=self.record.begun.after(one.answer.event))
        match message := one.message:
            case LockRequest():
                self.change(agreed_set=message.agreed_set, own_nonce=NONCES[1], peer_commitment=message.commitment_a)
            case AgreedSet():
                self.change(agreed_set=Signed[AgreedSet](message=message))
            case TagSeed():
                check = check_of(self.record.committed.message, np.array([1, 2], dtype=np.uint64))
                self.change(tag_seed=shown_seed(SEED_OF_TAGS), tag_check=Signed[TagCheck](message=check))
            case Go():
                self.change(go=Signed[Go](message=message))
            case TagsFailed():
                self.change(tags_failed=Signed[TagsFailed](message=message))
            case HandOver(go=go):
                self.change(go=go)
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
