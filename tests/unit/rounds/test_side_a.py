"""Side A decides in ``protocol/rounds/side_a.py`` what its server decided before: 10,000 rounds, every step of each.

A trace is one round at side A: contributions and declines come or do not, B answers what it likes, the process dies
where it can, time passes. Old and new decisions are asked at every step, and what they say is then done.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

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
from protocol.parameters import Needs
from protocol.rounds import side_a, steps
from protocol.rounds.agree import agree, check_transcript, nonce_commitment
from protocol.rounds.states import Locked, RoundKey
from protocol.rounds.steps import Act, AwaitReleaseSet, BothHold, End, Facts, Halt, Lock, Refused, TryLater, Wait
from protocol.wire.authentic import require_signatures, sign
from protocol.wire.message import Signature
from protocol.wire.messages import (
    NO_COMMITMENT,
    AgreedSet,
    Announcement,
    CollectedContribution,
    OutcomeCause,
    Purpose,
    ReleaseSet,
    RoundOutcome,
    RoundState,
    Signed,
    SumRelease,
)
from protocol.wire.peer_messages import CollectedSet, LockReply
from servers.rounds.standing import at_a
from servers.store.interface import RoundRecord
from tests.unit.parties import REQUESTER, SITES, announcement, parties
from tests.unit.rounds import old_side_a as old

TRACES = 10_000
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
    {"opens": Needs.NOTHING, "ckks_key_id": "5c" * 16},
)
ANNOUNCED = tuple(
    announcement(STUDY, number, least_contributors=2, closes_at_s=int(CLOSES_S), **kind)
    for kind in KINDS
    for number in (1, 2)
)


def held_of(site: str, of: Announcement, other: bool = False) -> CollectedContribution:
    return CollectedContribution(
        site=site,
        announcement_digest=of.digest(),
        commitment_a=OTHER if other else DIGEST,
        commitment_b=NO_COMMITMENT if of.protection.plan.keyed else DIGEST,
    )


HELD = {(of, site, other): held_of(site, of, other) for of in ANNOUNCED for site in SITES for other in (False, True)}


def collected_set(record: RoundRecord, held: tuple[CollectedContribution, ...], complete: bool = True) -> CollectedSet:
    return CollectedSet.model_construct(
        study_digest=STUDY,
        round=record.key.round,
        attempt=record.key.attempt,
        announcement_digest=DIGEST,
        complete=complete,
        contributions=held,
    )


class Trace:
    """One round at side A, and how both sets of decisions are asked about it."""

    def __init__(self, seed: int, seen: Counter[str]) -> None:
        self.rng, self.seen = random.Random(seed), seen
        of = self.rng.choice(ANNOUNCED)
        key = RoundKey(STUDY, of.round, 1)
        self.record = RoundRecord(key, RoundState.ANNOUNCED, Signed[Announcement](message=of), CLOSES_S)
        self.of, self.now_s, self.used, self.study_ended = of, CLOSES_S - 100, 0, False
        self.mine: tuple[CollectedContribution, ...] = ()
        self.declined: frozenset[str] = frozenset()
        self.attempts = self.rng.choice((1, 2, 3))

    def run(self) -> None:
        for _ in range(MOST_STEPS):
            self.happens()
            decision = self.ask()
            if decision in (("rest",), None):
                return
            self.carry_out(decision)

    # --- both are asked -----------------------------------------------------------------------------------------------

    def ask(self, peer: Any = None, complete: bool = True) -> old.Decision | None:
        """What both decide, or None where both stop with the same error."""
        before = self.world(peer, complete)
        expected, found = caught(lambda: old.side_a(self.record, before)), caught(lambda: self.new(peer, complete))
        assert found == expected, f"{self.record} {before}"
        self.seen[branch(self.record, peer, expected)] += 1
        return None if isinstance(expected[0], str) and expected[0].startswith("error") else expected

    def world(self, peer: Any, complete: bool) -> old.World:
        return old.World(
            roster=ROSTER,
            now_s=self.now_s,
            grace_s=GRACE_S,
            attempts=self.attempts,
            study_ended=self.study_ended,
            mine=self.mine,
            declined=self.declined,
            used=self.used,
            peer=peer,
            peer_complete=complete,
        )

    def new(self, peer: Any, complete: bool) -> old.Decision:
        store = SimpleNamespace(
            mail_of=lambda *_: [SimpleNamespace(sender=site) for site in self.declined],
            contributions_held=lambda _: len(self.mine),
            contributions=lambda _: self.mine,
            correlations_used=lambda _: 0 if peer is not None else self.used,  # marked in the same step
        )
        facts = Facts(ROSTER, self.now_s, GRACE_S, self.attempts, self.study_ended)
        if peer is not None:
            facts = replace(facts, peer=self.answer(peer, complete))
        return said(side_a.due(at_a(cast(Any, SimpleNamespace(store=store)), self.record), facts))

    def answer(self, peer: Any, complete: bool) -> steps.FromB:
        if isinstance(peer, MoietyError):
            return Refused(peer)
        if isinstance(peer, tuple):
            return BothHold(collected_set(self.record, self.mine), collected_set(self.record, peer, complete))
        return steps.Signature(peer)

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
        elif record.state is RoundState.MEASURED and rng.random() < 0.4 and self.of.purpose is not Purpose.RANKING:
            self.record = replace(record, release_set=record.release_set or self.release_set())

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

    def carry_out(self, decision: old.Decision) -> None:
        match decision[0]:
            case "compare" | "read own":
                self.compare()
            case "lock":
                signed = Signed[AgreedSet](message=decision[1], signatures=(BY_A,))
                self.change(state=RoundState.LOCKED, agreed_set=signed, own_nonce=bytes(32))
            case "toss" if self.rng.random() < 0.8:
                self.change(transcript=cast(Any, SimpleNamespace()))
            case "multiply":
                self.multiply()
            case "await release set" if self.rng.random() < 0.7:
                self.then(self.ask(UnknownResource("not here")))
            case "hand over" | "sum up":
                self.release(decision[0])
            case "end":
                self.end(decision)
            case "countersign":
                self.countersign()

    def change(self, **changes: Any) -> None:
        self.record = replace(self.record, **changes)

    def then(self, decision: old.Decision | None) -> None:
        if decision is not None:
            self.carry_out(decision)

    def compare(self) -> None:
        if self.rng.random() < 0.15 and not self.of.protection.plan.keyed:
            self.then(self.ask(UnknownResource("not announced here")))
            return
        kept = [c.site for c in self.mine if self.rng.random() < 0.9]
        theirs = tuple(HELD[self.of, site, self.rng.random() < 0.1] for site in kept)
        self.then(
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
                    decision = self.ask(self.rng.choice(errors))
                    if decision != ("send again",):
                        self.then(decision)
                        return
                case _:
                    self.change(state=RoundState.MEASURED)
                    return

    def release(self, how: str) -> None:
        if self.rng.random() < 0.2:
            self.ask(ConflictingMessage("another release set"))
            return
        if how == "sum up":
            message = SumRelease(study_digest=STUDY, round=1, attempt=1, release_digest=DIGEST, sum_digest=DIGEST)
            self.change(sum_release=Signed[SumRelease](message=message, signatures=(BY_A,)))
        elif self.of.round % 2:
            self.change(mask_seed=bytes(32))
        if how == "hand over" and self.rng.random() < 0.5:
            self.change(state=RoundState.RELEASED)

    def end(self, decision: old.Decision) -> None:
        _, state, cause, found, needed, code = decision
        message = RoundOutcome(
            study_digest=STUDY,
            round=self.record.key.round,
            attempt=self.record.key.attempt,
            outcome=state,
            cause=cause,
            found=found,
            needed=needed,
            code=code,
        )
        self.change(outcome=Signed[RoundOutcome](message=message, signatures=(BY_A,)))

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

    def taken(self, decision: old.Decision | None, signed: Any) -> None:
        both = signed.model_copy(update={"signatures": (BY_A, BY_B)})
        match decision:
            case ("take",) if self.record.outcome is not None:
                self.ended(signed.message.outcome, both)
            case ("take",) if self.record.sum_release is not None:
                self.change(state=RoundState.RELEASED, sum_release=both)
            case ("take",):
                self.change(state=RoundState.MEASURED, agreed_set=both)
            case ("take alone",):
                self.change(state=RoundState.SKIPPED)
            case _:
                self.then(decision)

    def ended(self, state: RoundState, both: Signed[RoundOutcome]) -> None:
        if state is not RoundState.BURNT:
            self.change(state=state, outcome=both)
            return
        key = replace(self.record.key, attempt=self.record.key.attempt + 1)
        self.record = RoundRecord(key, RoundState.ANNOUNCED, self.record.announcement, self.now_s + 60)
        self.used, self.mine = 0, ()


def caught(decide: Callable[[], old.Decision]) -> old.Decision:
    """The decision, or the error's kind and text."""
    try:
        return decide()
    except old.NotYet as error:
        return ("error: later", error.detail)
    except MoietyError as error:
        return ("error: halt", error.detail)


def said(step: steps.Step) -> old.Decision:
    """The new decision in the old one's words."""
    match step:
        case Act():
            return (step.name.lower().replace("_", " "),)
        case Wait(until_s):
            return ("wait", until_s)
        case AwaitReleaseSet(for_s):
            return ("await release set", for_s)
        case Lock(agreed):
            return ("lock", agreed)
        case End(outcome):
            return ("end", outcome.outcome, outcome.cause, outcome.found, outcome.needed, outcome.code)
        case TryLater(detail):
            return ("error: later", detail)
        case Halt(detail):
            return ("error: halt", detail)


def branch(record: RoundRecord, peer: Any, decision: old.Decision) -> str:
    """Where in the decisions a step has been."""
    ending = "" if record.outcome is None else f" ending as {record.outcome.message.outcome.value}"
    kind = (
        "ciphertexts"
        if record.announcement.message.protection.plan.keyed
        else record.announcement.message.purpose.value
    )
    asked = "" if peer is None else f" after {type(peer).__name__}"
    what = decision[2].value if decision[0] == "end" else decision[0]
    return f"{kind}, {record.state.value}{ending}{asked}: {what}"


def test_ten_thousand_rounds_are_decided_as_before() -> None:
    seen: Counter[str] = Counter()
    for seed in range(TRACES):
        Trace(seed, seen).run()
    decisions = {line.split(": ", 1)[1] for line in seen}
    assert decisions >= {act.name.lower().replace("_", " ") for act in Act} | {cause.value for cause in OutcomeCause}
    assert decisions >= {"wait", "await release set", "lock", "error: later", "error: halt"}
    assert len(seen) > 200, "of what can be asked in which state the traces reach too little"


def test_the_lock_shows_one_signature_and_the_toss_takes_the_peers() -> None:
    of, nonces = ANNOUNCED[0], (bytes(range(32)), bytes(range(1, 33)))
    held = tuple(HELD[of, site, False] for site in SITES)
    keys = {name: parties().keys[name].signing for name in (ROSTER.operator_a.name, ROSTER.operator_b.name)}
    agreed = agree(of, 1, ROSTER, held, held)
    by_a, by_b = (sign(agreed, name, keys[name]) for name in keys)
    attempt = RoundRecord(RoundKey(STUDY, 1, 1), RoundState.LOCKED, Signed[Announcement](message=of), CLOSES_S).begun
    locked = Locked(attempt, Signed[AgreedSet](message=agreed, signatures=by_a.signatures + by_b.signatures), nonces[0])
    request = side_a.lock_request(locked)
    assert (request.agreed_set, request.commitment_a) == (by_a, nonce_commitment(1, agreed.digest(), nonces[0]))
    reply = LockReply(signature=by_b.signatures[0], nonce_b=nonces[1].hex())
    toss = side_a.tossed(replace(locked, agreed=by_a), reply, ROSTER.operator_b)
    assert require_signatures(toss.agreed, ROSTER, tuple(keys)) == agreed
    assert check_transcript(1, agreed, toss.transcript) == bytes.fromhex(toss.transcript.challenge)
    with pytest.raises(BadSignature):
        side_a.tossed(locked, LockReply(signature=by_a.signatures[0], nonce_b=reply.nonce_b), ROSTER.operator_b)
