"""A server that aborts where it likes, with the requester or alone: a round that ends twice, or is measured twice.

Two ends of one round, or two sums under one mask, show the difference of two sums over almost the same sites. The
other server is real, with its store and keys, but without counters, files and failpoints; what it is asked comes from
a script.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar, cast

from client_agent.study.release import require_outcome
from harness.attack.attack import Attempt, Found, passes
from harness.attack.forgeries import equivocating_announcement, release_set
from harness.attack.hostile_messages import unsigned
from harness.attack.scripted_agents import (
    DIMENSION,
    PARTIES,
    REQUESTER,
    ROSTER,
    SITES,
    Federation,
    How,
    agreed_over,
    announced,
    by_operator,
    by_requester,
    study,
)
from protocol.errors import ConflictingMessage, MoietyError, ProtocolViolation, UnknownResource
from protocol.messages.control import (
    Announcement,
    ContributedRound,
    LayerShape,
    Message,
    ModelSpec,
    OutcomeCause,
    Purpose,
    RankingSpec,
    ReleaseSet,
    Roster,
    RoundOutcome,
    RoundState,
    RoundView,
    Signed,
    Study,
    StudyState,
    WeightList,
    countersign,
    sign,
)
from protocol.roster.chain import RosterChain
from protocol.roster.keyfile import PartyKeys
from protocol.rounds.evidence import check_release
from protocol.rounds.side_a import Act, End, FromB, Signature, Step, outcome_of
from protocol.rounds.side_b import Move
from protocol.rounds.states import AtA, RoundEvent, RoundKey
from protocol.sharing import Side
from servers.rounds.endings import Endings, countersign_outcome, next_step
from servers.rounds.release import commit_release, with_mask_seed
from servers.server import Server
from servers.store.migrate import upgrade
from servers.store.records import RoundRecord, StudyRecord
from servers.store.sql import SqlStore

M = TypeVar("M", bound=Message)
T = TypeVar("T")
_A, _B = (ROSTER.operator(side).name for side in Side)
_LINEAR: Final = ModelSpec(kind="linear", inputs=(30,), layers=(LayerShape(name="weight", shape=(DIMENSION,)),))
_STUDY: Final[Study] = study("ends").model_copy(update={"model": _LINEAR, "ranking": RankingSpec()})
_EVERYBODY: Final = (REQUESTER, *SITES)
_KEY: Final = RoundKey(_STUDY.digest(), 1, 1)
_LATE, _LOST = OutcomeCause.NOT_AGREED_IN_TIME, OutcomeCause.CORRELATIONS_LOST


def _announced(purpose: Purpose) -> Announcement:
    _, told = announced(_STUDY, 1, SITES, How(version=0, purpose=purpose))
    return told.model_copy(update={"closes_at_s": 2_000_000_000})


def _release_of(*sites: str) -> Signed[ReleaseSet]:
    return by_requester(release_set(agreed_over(_UPDATE, _EVERYBODY), (REQUESTER, *sites)))


@dataclass
class ScriptedServer:
    """The other server: it has this release set, if any, and answers a request for its signature by ``outcome``.

    With keys it ``signs`` whatever it is asked to sign and keeps it, refuses once, and then answers with what it signed
    first. ``asked`` are the kinds of what it was asked.
    """

    outcome: Exception
    release_set: Signed[ReleaseSet] | None = None
    signs: PartyKeys | None = None
    kept: list[Signed[RoundOutcome]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    async def get(self, path: str, kind: str) -> bytes:
        self.asked.append(kind)
        if self.release_set is None:
            raise UnknownResource("none here")
        return self.release_set.canonical()

    async def post(self, path: str, body: bytes, kind: str) -> bytes:
        self.asked.append(kind)
        if self.signs is None:
            raise self.outcome
        self.kept.append(countersign(Signed[RoundOutcome].parse(body), self.signs.name, self.signs.signing))
        if len(self.kept) == 1:
            raise self.outcome
        return self.kept[0].canonical()


def scripted_server(side: Side, store: SqlStore, roster: Signed[Roster], keys: PartyKeys) -> Any:  # noqa: ANN401
    """A Server in the middle of a round, with a real store and real keys, but without counters and files."""
    counter = SimpleNamespace(labels=lambda *_: SimpleNamespace(inc=lambda *_: None))
    limits = SimpleNamespace(outputs_kept_rounds=5, pause_after_skips=3, attempts=3, grace_s=60)
    return SimpleNamespace(
        side=side,
        name=keys.name,
        peer=roster.message.operator(side.other),
        roster=roster.message,
        chain=RosterChain(roster),
        store=store,
        clock=lambda: 2_000_000_001.0,
        failpoints=SimpleNamespace(reach=lambda _: None),
        files=SimpleNamespace(delete=lambda _: None),
        shares=SimpleNamespace(forget=lambda _: None),
        shards=None,
        metrics=SimpleNamespace(rounds=counter),
        note_round=lambda *_: None,
        randomness=SimpleNamespace(bytes=lambda n, _: bytes(n)),
        settings=SimpleNamespace(limits=limits),
        sign=lambda message: sign(message, keys.name, keys.signing),
        countersign=lambda signed: countersign(signed, keys.name, keys.signing),
    )


def store_with(folder: Path, record: RoundRecord, of: Study, name: str = "store") -> SqlStore:
    """A store of one study, with this round."""
    url = f"sqlite:///{folder / name}.db"
    upgrade(url)
    made = SqlStore(url, lambda _: None)
    made.add_study(StudyRecord(record.key.study, Signed[Study](message=of), StudyState.OPEN, "", 1))
    made.add_round(record)
    return made


class HonestServer:
    """One real server in the middle of a round; its store is a file in ``folder``."""

    def __init__(self, folder: Path, side: Side, state: RoundState, told: Announcement) -> None:
        agreed = by_operator(Side.A, agreed_over(told, _EVERYBODY))
        closes = float(told.closes_at_s)
        self.record = RoundRecord(_KEY, state, Signed[Announcement](message=told), closes, agreed_set=agreed)
        self.store = store_with(folder, self.record, _STUDY)
        self.server = scripted_server(side, self.store, PARTIES.roster, PARTIES.keys_of(ROSTER.operator(side).name))

    @property
    def now(self) -> RoundRecord:
        return self.store.round(_KEY) or self.record

    def with_everybodys_release(self) -> RoundRecord:
        return self.store.change_round(_KEY, lambda r: replace(r, release_set=_ALL))

    def commits(self, held: RoundRecord) -> None:
        commit_release(self.server, self.store.study(_KEY.study), held, "output")

    def countersigns(self, state: RoundState, cause: OutcomeCause) -> None:
        countersign_outcome(self.server, _KEY, by_operator(Side.A, outcome_of(_KEY, state, cause)))

    def endings(self, peer: ScriptedServer) -> Endings:
        return Endings(self.server, cast(Any, peer))


_UPDATE: Final = _announced(Purpose.UPDATE)
_RANKING: Final = _announced(Purpose.RANKING)
_ALL, _WITHOUT_LAST = _release_of(*SITES), _release_of(*SITES[:-1])

# --- scripts ----------------------------------------------------------------------------------------------------------

Script = Callable[[HonestServer], bool]


def _unless_refused(script: Callable[[T], bool], by: T) -> Found:
    try:
        reached = script(by)
    except MoietyError as refused:
        return Found(False, 0, refused.detail)
    return Found(reached, float(reached))


def _skip_after_release(honest: HonestServer) -> bool:
    honest.commits(honest.with_everybodys_release())
    return _ends(RoundState.SKIPPED, _LATE, honest)


def _ends(state: RoundState, cause: OutcomeCause, honest: HonestServer) -> bool:
    """Another end, which server A signs."""
    honest.countersigns(state, cause)
    return True


def _release_after_skip(honest: HonestServer) -> bool:
    """The sum was on its way."""
    held = honest.with_everybodys_release()
    honest.countersigns(RoundState.SKIPPED, _LATE)
    honest.commits(held)
    return honest.now.state is RoundState.RELEASED


def _second_release_set(honest: HonestServer) -> bool:
    """y(all) - PRG(t) and y(all but one) - PRG(t): B would subtract them."""
    sent = with_mask_seed(honest.server, honest.with_everybodys_release())
    ending = honest.endings(ScriptedServer(ProtocolViolation("not asked"), _WITHOUT_LAST))
    conflict = ConflictingMessage("B says now that it has another one")
    adopted = asyncio.run(ending.adopt_peers_release_set(honest.store.study(_KEY.study), sent, conflict))
    return adopted.release_set == _WITHOUT_LAST


def _burnt_in_private(honest: HonestServer) -> bool:
    """B signs the burn, refuses it, and answers the skip by what it signed: another attempt of a skipped round."""
    peer = ScriptedServer(UnknownResource("no such round"), signs=PARTIES.keys_of(_B))
    burnt = End(outcome_of(honest.record.key, RoundState.BURNT, OutcomeCause.PRODUCTS_REFUSED))
    asyncio.run(honest.endings(peer).end(honest.record, burnt))
    now = honest.store.current_round(_KEY.study)
    return now is not None and now.key.attempt > 1


# --- with the defence taken out ---------------------------------------------------------------------------------------


def _any_step(_: object, event: RoundEvent) -> RoundState:
    """Every way leads from every state."""
    return RoundState.ANNOUNCED if event is RoundEvent.RETRIED else RoundState(event.value)


def _any_signature(server: Server, state: AtA, answer: FromB | None = None, asked_at_s: float | None = None) -> Step:
    """Whatever B signs is taken for what it was asked to sign."""
    return Act.TAKE if isinstance(answer, Signature) else next_step(server, state, answer, asked_at_s)


def _attempt(
    script: Script, without: Mapping[str, object], side: Side, state: RoundState, told: Announcement = _UPDATE
) -> Attempt:
    """It succeeds when the honest server does what it must not do any more."""
    return Attempt(lambda folder: _unless_refused(script, HonestServer(folder, side, state, told)), without)


_ANY_STEP: Final = {"protocol.rounds.states.Attempt.after": _any_step}
_SIGNS: Final = {
    "servers.rounds.endings.answer": lambda state, message, roster: Move(RoundEvent(message.outcome.value)),
    **_ANY_STEP,
}
_ANY_SET: Final = {"servers.rounds.endings.next_step": lambda server, state, *_: Act.TAKE}
_ANY_SIGNATURE: Final = {"servers.rounds.endings.next_step": _any_signature}
_MEASURED: Final = RoundState.MEASURED
_ENDED: Final = {
    "ends-skip-after-release": _attempt(_skip_after_release, _SIGNS, Side.B, _MEASURED),
    "ends-release-after-skip": _attempt(_release_after_skip, _ANY_STEP, Side.B, _MEASURED),
    "ends-second-release-set": _attempt(_second_release_set, _ANY_SET, Side.A, _MEASURED),
    "ends-skip-after-opening": _attempt(partial(_ends, RoundState.SKIPPED, _LATE), _SIGNS, Side.B, _MEASURED, _RANKING),
    "ends-burn-after-opening": _attempt(partial(_ends, RoundState.BURNT, _LOST), _SIGNS, Side.B, _MEASURED, _RANKING),
    "ends-burn-in-private": _attempt(_burnt_in_private, _ANY_SIGNATURE, Side.A, RoundState.LOCKED),
}


# --- a server that shows a site something else than the other server does, or speaks for it ---------------------------

_VICTIM: Final = SITES[0]
_LISTED: Final = SITES[:4]
Showing = Callable[[Federation], bool]


def _shown(script: Showing, folder: Path) -> Found:
    """One thing that is shown to a site; it succeeds when the site acts on it."""
    with Federation(folder) as sites:
        return _unless_refused(script, sites)


def _signed(message: M, *signers: tuple[str, str]) -> Signed[M]:
    """A message that each first party signs, in the name of the second."""
    (first, name), *others = signers
    signed = sign(message, name, PARTIES.keys_of(first).signing)
    for signer, other in others:
        signed = countersign(signed, other, PARTIES.keys_of(signer).signing)
    return signed


def _said(told: Announcement, *operators: tuple[str, str]) -> RoundView:
    signed = _signed(told, (REQUESTER, REQUESTER), *operators)
    return RoundView(round=told.round, attempt=1, state=RoundState.ANNOUNCED, announcement=signed)


def _list() -> tuple[WeightList, Announcement]:
    return announced(study(), 1, _LISTED, {"version": 0})


def _forked(sites: Federation) -> bool:
    weights, told = _list()
    shown, other = equivocating_announcement(told)
    return sites.shown(study(), _VICTIM, weights, (_said(shown, (_A, _A)), _said(other, (_B, _B)))).accepted


def _for_the_other(sites: Federation) -> bool:
    """A signs in its own name and, with its own key, in B's."""
    weights, told = _list()
    return sites.shown(study(), _VICTIM, weights, (_said(told, (_A, _A)), _said(told, (_A, _B)))).accepted


def _kept_out(sites: Federation) -> bool:
    """A alone shows a list without the victim: a site that believed it would stay away without a word."""
    weights, told = _list()
    without = told.model_copy(update={"listed": SITES[1:4]})
    decided = sites.shown(study(), _VICTIM, weights, (_said(without, (_A, _A)), _said(told, (_B, _B))))
    return not decided.accepted and not decided.listed


def _skipped_alone(sites: Federation) -> bool:
    """A's word alone that the round whose sum was opened was skipped: the site would allow another sum."""
    key = RoundKey(study().digest(), 1, 1)
    skip = _signed(outcome_of(key, RoundState.SKIPPED, OutcomeCause.NOT_AGREED_IN_TIME), (_A, _A), (_A, _B))
    return require_outcome(skip, ROSTER, key.study, 1, RoundState.SKIPPED).outcome is RoundState.SKIPPED


def _other_contributors(sites: Federation) -> bool:
    """A tells a site that was away that others were in the sum, under a set that B never signed."""
    of = study()
    past = sites.round(of, 1, _LISTED, version=0, end=None).past
    agreed = past.agreed_set.message
    fewer = agreed.model_copy(update={"contributions": agreed.contributions[:-1]})
    release = past.release_set.message.model_copy(
        update={"agreed_set_digest": fewer.digest(), "sites": tuple(one.site for one in fewer.contributions)}
    )
    told = past.model_copy(
        update={
            "agreed_set": _signed(fewer, (_A, _A), (_A, _B)),
            "release_set": _signed(release, (REQUESTER, REQUESTER)),
        }
    )
    check_release(told, ROSTER, of.digest())
    return True


def _receipts(sites: Federation) -> bool:
    """A names receipts of rounds that never were: the site takes its own memory for lost."""
    made_up = ContributedRound(study="elsewhere", study_digest="ab" * 32, round=1, attempt=1, body_digest="cd" * 32)
    sites.relays[_VICTIM][Side.A].receipts = (made_up,)
    return _VICTIM in sites.round(study(), 1, _LISTED, version=0).refused


_ANNOUNCED: Final = {"client_agent.contributor.decisions.Decisions._check_announced": passes}
_FORKED: Final = {
    "fork-two-announcements": Attempt(partial(_shown, _forked), _ANNOUNCED),
    "fork-in-the-others-name": Attempt(
        partial(_shown, _for_the_other), {"client_agent.contributor.decisions.require_signatures": unsigned}
    ),
    "fork-that-keeps-a-site-out": Attempt(partial(_shown, _kept_out), _ANNOUNCED),
    "fork-that-skips-alone": Attempt(
        partial(_shown, _skipped_alone), {"client_agent.study.release.require_signatures": unsigned}
    ),
    "fork-of-other-contributors": Attempt(
        partial(_shown, _other_contributors), {"protocol.rounds.evidence.require_signatures": unsigned}
    ),
    "server-invents-receipts": Attempt(partial(_shown, _receipts)),
}
ATTEMPTS: Final = {**_ENDED, **_FORKED}
