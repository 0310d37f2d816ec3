"""Seeded rounds at side A, step by step: what the store held, what A knew, what ``protocol/rounds/side_a.py`` decided.

A trace is one round: contributions and declines come or do not, B answers what it likes, the process dies where it
can, time passes; what is decided is then done.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

from protocol.channel.message import Signature
from protocol.errors import (
    BadSignature,
    ConflictingMessage,
    CorrelationReused,
    MoietyError,
    PeerUnreachable,
    Unavailable,
    UnknownResource,
    WrongRound,
)
from protocol.messages.control import (
    NO_COMMITMENT,
    AgreedSet,
    Announcement,
    CollectedContribution,
    Purpose,
    ReleaseSet,
    RoundOutcome,
    RoundState,
    Signed,
    SumRelease,
)
from protocol.messages.peer import CollectedSet
from protocol.parameters import Needs
from protocol.rounds import side_a
from protocol.rounds.side_a import Act, AwaitGo, AwaitReleaseSet, BothHold, End, Facts, Halt, Lock, Refused, TryLater
from protocol.rounds.states import AtA, RoundKey
from protocol.tags import seed_hash
from servers.rounds.standing import at_a
from servers.store.study_records import RoundRecord
from tests.unit.parties import REQUESTER, SITES, announcement, parties

MOST_STEPS = 25
ROSTER = parties().roster.message
STUDY, DIGEST, OTHER = "d" * 64, "a" * 64, "b" * 64
CLOSES_S, GRACE_S = 1000.0, 60.0
BY_A, BY_B = (Signature(signer=p.name, value="00" * 64) for p in (ROSTER.operator_a, ROSTER.operator_b))
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"opens": Needs.NOTHING},
    {"opens": Needs.INNER_PRODUCTS, "purpose": Purpose.RANKING},
    {"opens": Needs.NOTHING, "purpose": Purpose.COUNTS},
    {"opens": Needs.PAIRS, "purpose": Purpose.MEASURE},
    {"opens": Needs.NOTHING, "ckks_key_id": "5c" * 16},
)
ANNOUNCED = tuple(
    announcement(STUDY, number, least_contributors=2, closes_at_s=int(CLOSES_S), **kind)
    for kind in KINDS
    for number in (1, 2)
)

SEED_OF_TAGS = bytes(range(32))
TAGGED = tuple(
    announcement(
        STUDY,
        number,
        least_contributors=2,
        closes_at_s=int(CLOSES_S),
        tag_seed_hash=seed_hash(STUDY, number, SEED_OF_TAGS),
        **kind,
    )
    for kind in KINDS
    if kind.get("purpose", Purpose.UPDATE).plan.summed and "ckks_key_id" not in kind
    for number in (1, 2)
)


def held_of(site: str, of: Announcement, other: bool = False) -> CollectedContribution:
    return CollectedContribution(
        site=site,
        announcement_digest=of.digest(),
        commitment_a=OTHER if other else DIGEST,
        commitment_b=NO_COMMITMENT if of.protection.plan.keyed else DIGEST,
    )


HELD = {
    (of, site, other): held_of(site, of, other)
    for of in (*ANNOUNCED, *TAGGED)
    for site in SITES
    for other in (False, True)
}


def collected_set(record: RoundRecord, held: tuple[CollectedContribution, ...], complete: bool = True) -> CollectedSet:
    return CollectedSet.model_construct(
        study_digest=STUDY,
        round=record.key.round,
        attempt=record.key.attempt,
        announcement_digest=DIGEST,
        complete=complete,
        contributions=held,
    )


@dataclass(frozen=True)
class Decided:
    """One step of a trace."""

    record: RoundRecord
    held: tuple[CollectedContribution, ...]
    declined: frozenset[str]
    state: AtA
    facts: Facts
    step: side_a.Step

    @property
    def asked(self) -> bool:
        """B has answered."""
        return not isinstance(self.facts.peer, side_a.Unasked)

    @property
    def situation(self) -> str:
        record, peer = self.record, self.facts.peer
        ending = "" if record.outcome is None else f" ending as {record.outcome.message.outcome.value}"
        kind = (
            "ciphertexts"
            if record.announcement.message.protection.plan.keyed
            else record.announcement.message.purpose.value
        )
        answer = type(peer.error if isinstance(peer, Refused) else peer).__name__
        return f"{kind}, {record.state.value}{ending}, {answer}"


class Trace:
    """One round at side A, announced as one of ``announced``."""

    def __init__(self, seed: int, announced: tuple[Announcement, ...] = ANNOUNCED) -> None:
        self.rng = random.Random(seed)
        self.decided: list[Decided] = []
        of = self.rng.choice(announced)
        key = RoundKey(STUDY, of.round, 1)
        self.record = RoundRecord(key, RoundState.ANNOUNCED, Signed[Announcement](message=of), CLOSES_S)
        self.of, self.now_s, self.used, self.study_ended = of, CLOSES_S - 100, 0, False
        self.mine: tuple[CollectedContribution, ...] = ()
        self.declined: frozenset[str] = frozenset()
        self.attempts = self.rng.choice((1, 2, 3))

    def run(self) -> list[Decided]:
        for _ in range(MOST_STEPS):
            self.happens()
            step = self.ask()
            if step is Act.REST or isinstance(step, TryLater | Halt):
                break
            self.carry_out(step)
        return self.decided

    def ask(self, peer: Any = None, complete: bool = True) -> side_a.Step:
        store = SimpleNamespace(
            mail_of=lambda *_: [SimpleNamespace(sender=site) for site in self.declined],
            contributions_held=lambda _: len(self.mine),
            contributors_of=lambda _: tuple(one.site for one in self.mine),
            correlations_used=lambda _: 0 if peer is not None else self.used,  # marked in the same step
        )
        facts = Facts(ROSTER, self.now_s, GRACE_S, self.attempts, self.study_ended)
        if peer is not None:
            facts = replace(facts, peer=self.answer(peer, complete))
        state = at_a(cast(Any, SimpleNamespace(store=store, roster=ROSTER)), self.record)
        step = side_a.due(state, facts)
        self.decided.append(Decided(self.record, self.mine, self.declined, state, facts, step))
        return step

    def answer(self, peer: Any, complete: bool) -> side_a.FromB:
        if isinstance(peer, MoietyError):
            return Refused(peer)
        if isinstance(peer, tuple):
            return BothHold(collected_set(self.record, self.mine), collected_set(self.record, peer, complete))
        return side_a.Signature(peer)

    # --- what happens -------------------------------------------------------------------------------------------------

    def happens(self) -> None:
        """Time passes; somebody contributes, declines, sends queries or a release set, or ends the study."""
        rng, record = self.rng, self.record
        self.now_s += rng.choice((0, 1, 30, 200))
        self.study_ended = self.study_ended or rng.random() < 0.01
        if record.outcome is not None:
            return
        if record.state in (RoundState.ANNOUNCED, RoundState.COLLECTING):
            self.contributions_come()
        elif record.state is RoundState.LOCKED and record.transcript is not None and rng.random() < 0.5:
            self.record = replace(record, query_header=cast(Any, SimpleNamespace()))
        elif record.state is RoundState.MEASURED and rng.random() < 0.4 and self.of.purpose.plan.summed:
            self.record = replace(record, release_set=record.release_set or self.release_set())
        elif record.state is RoundState.COMMITTED and rng.random() < 0.5 and record.go is record.tags_failed is None:
            kept = rng.choice(("go", "go", "tags_failed"))
            self.record = replace(record, **cast(Any, {kept: SimpleNamespace()}))

    def contributions_come(self) -> None:
        for site in SITES:
            if site not in {c.site for c in self.mine} and self.rng.random() < 0.6:
                self.mine = (*self.mine, HELD[self.of, site, False])
                self.record = replace(self.record, state=RoundState.COLLECTING)
            elif site != REQUESTER and self.rng.random() < 0.3:
                self.declined |= {site}

    def release_set(self) -> Signed[ReleaseSet]:
        return Signed[ReleaseSet](
            message=ReleaseSet(study_digest=STUDY, round=1, attempt=1, agreed_set_digest=DIGEST, sites=SITES)
        )

    # --- what was decided is done -------------------------------------------------------------------------------------

    def carry_out(self, step: side_a.Step) -> None:
        match step:
            case Act.COMPARE | Act.READ_OWN:
                self.compare()
            case Lock(agreed):
                signed = Signed[AgreedSet](message=agreed, signatures=(BY_A,))
                self.change(state=RoundState.LOCKED, agreed_set=signed, own_nonce=bytes(32))
            case Act.TOSS if self.rng.random() < 0.8:
                self.change(transcript=cast(Any, SimpleNamespace()))
            case Act.MULTIPLY:
                self.multiply()
            case AwaitReleaseSet() if self.rng.random() < 0.7:
                self.carry_out(self.ask(UnknownResource("not here")))
            case AwaitGo() if self.rng.random() < 0.7:
                self.carry_out(self.ask(UnknownResource("not here")))
            case Act.HAND_OVER_GO:
                self.hand_over_go()
            case Act.HAND_OVER | Act.SUM_UP:
                self.release(step)
            case End(outcome):
                self.change(outcome=Signed[RoundOutcome](message=outcome, signatures=(BY_A,)))
            case Act.COUNTERSIGN:
                self.countersign()

    def change(self, **changes: Any) -> None:
        self.record = replace(self.record, **changes)

    def compare(self) -> None:
        if self.rng.random() < 0.15 and not self.of.protection.plan.keyed:
            self.carry_out(self.ask(UnknownResource("not announced here")))
            return
        kept = [c.site for c in self.mine if self.rng.random() < 0.9]
        theirs = tuple(HELD[self.of, site, self.rng.random() < 0.1] for site in kept)
        self.carry_out(
            self.ask(
                self.mine if self.of.protection.plan.keyed else theirs,
                self.of.protection.plan.keyed or self.rng.random() < 0.9,
            )
        )

    def multiply(self) -> None:
        self.used = self.rng.choice((0, 3))
        for _ in range(3):
            match self.rng.randrange(6):
                case 0:
                    return  # the process dies
                case 1 | 2:
                    errors = (
                        Unavailable("no queries"),
                        PeerUnreachable("away"),
                        WrongRound("no"),
                        CorrelationReused("twice"),
                        BadSignature("whose"),
                    )
                    step = self.ask(self.rng.choice(errors))
                    if step is not Act.SEND_AGAIN:
                        self.carry_out(step)
                        return
                case _:
                    self.change(state=RoundState.MEASURED)
                    return

    def release(self, how: Act) -> None:
        if self.rng.random() < 0.2:
            self.ask(ConflictingMessage("another release set"))
            return
        if how is Act.SUM_UP:
            message = SumRelease(study_digest=STUDY, round=1, attempt=1, release_digest=DIGEST, sum_digest=DIGEST)
            self.change(sum_release=Signed[SumRelease](message=message, signatures=(BY_A,)))
        elif self.of.round % 2:
            self.change(mask_seed=bytes(32))
        if how is Act.HAND_OVER and self.rng.random() < 0.5:
            if self.of.tagged:
                self.change(
                    state=RoundState.COMMITTED, commitment=cast(Any, SimpleNamespace()), committed_at_s=self.now_s
                )
            else:
                self.change(state=RoundState.RELEASED)

    def hand_over_go(self) -> None:
        if self.rng.random() < 0.2:
            self.ask(self.rng.choice((WrongRound("skipped here"), ConflictingMessage("said otherwise"))))
        elif self.rng.random() < 0.7:
            self.change(state=RoundState.RELEASED)

    def countersign(self) -> None:
        record = self.record
        signed: Any = record.outcome or record.sum_release or record.agreed_set
        errors: list[Exception] = [UnknownResource("no such round")]
        if record.outcome is not None or record.sum_release is not None:
            errors.append(WrongRound("round 1 is over here"))
        if record.outcome is None and record.sum_release is not None:
            errors.append(ConflictingMessage("ends with another sum"))
        other = signed.message.model_copy(update={"attempt": 9})
        self.taken(self.ask(self.rng.choice((signed.message, signed.message, signed.message, other, *errors))), signed)

    def taken(self, step: side_a.Step, signed: Any) -> None:
        both = signed.model_copy(update={"signatures": (BY_A, BY_B)})
        match step:
            case Act.TAKE if self.record.outcome is not None:
                self.ended(signed.message.outcome, both)
            case Act.TAKE if self.record.sum_release is not None:
                self.change(state=RoundState.RELEASED, sum_release=both)
            case Act.TAKE:
                self.change(state=RoundState.MEASURED, agreed_set=both)
            case Act.TAKE_ALONE:
                self.change(state=RoundState.SKIPPED)
            case _:
                self.carry_out(step)

    def ended(self, state: RoundState, both: Signed[RoundOutcome]) -> None:
        if state is not RoundState.BURNT:
            self.change(state=state, outcome=both)
            return
        key = replace(self.record.key, attempt=self.record.key.attempt + 1)
        self.record = RoundRecord(key, RoundState.ANNOUNCED, self.record.announcement, self.now_s + 60)
        self.used, self.mine = 0, ()
