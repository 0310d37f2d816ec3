"""Seven real contributors, default policy, and a requester of the test's choice; servers only add, so they are a sum.

Sites learn by full batches: each one's update is the gradient of its own quadratic, the same for the same model.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Required, TypedDict, TypeVar, Unpack

import numpy as np

from client_agent.contributor.decisions import Decision
from client_agent.contributor.run import Contributor
from client_agent.net.envelopes import Body
from client_agent.net.ledger import Ledger
from client_agent.site.context import SiteContext, drop_sum
from client_agent.site.identity import HeldRoster
from client_agent.site.journal import StudyJournal
from client_agent.site.letters import WeightMail, Welcome
from harness.attack.forgeries import release_set
from harness.attack.signed_client import there
from harness.engine.parties import SiteEntry, make_parties
from harness.federation.clocks import ToldClock
from harness.federation.learners import LightLearner, Odd
from host.randomness import SeededRandomness, SystemRandomness
from protocol.arithmetic.fixed_point import decode
from protocol.channel.keys import SEALING_KEY_BYTES, SIGNING_KEY_BYTES, generate_sealing_key, generate_signing_key
from protocol.errors import OutputGone
from protocol.messages.control import (
    AgreedSet,
    Announcement,
    CollectedContribution,
    ContributedRound,
    ContributedRounds,
    LayerShape,
    ListedWeight,
    Message,
    ModelSpec,
    Purpose,
    RoundState,
    RoundView,
    RuleName,
    RuleSpec,
    Signed,
    Study,
    StudyView,
    TrainingSpec,
    WeightList,
    countersign,
    sign,
)
from protocol.messages.letter import seal_checkpoint, seal_letter
from protocol.parameters import Needs, StudyParameters
from protocol.policy.site_policy import SitePolicy
from protocol.roster.chain import RosterChain, Wanted, claimed, proposed, signers
from protocol.roster.keyfile import PartyKeys
from protocol.rounds.agreement import model_digest
from protocol.rounds.evidence import PastRelease
from protocol.sharing import Side

M = TypeVar("M", bound=Message)
REQUESTER = "r0"
SITES = tuple(f"c{number}" for number in range(1, 8))
DIMENSION = 60
GRID = 32
PARTIES = make_parties("scripted", REQUESTER, [SiteEntry(name, 50) for name in (REQUESTER, *SITES)], bytes(32))
ROSTER = PARTIES.roster.message
SITE_KEY = bytes(range(32))
START = np.linspace(-1, 1, DIMENSION, dtype=np.float32)
_DIGEST = "ab" * 32
_CONTENT_KEY = "55" * 32


def study(name: str = "scripted", **changes: object) -> Study:
    made = Study(
        name=name,
        roster_digest=ROSTER.digest(),
        parameters=StudyParameters(dimension=DIMENSION, clip_norm=4.0, least_contributors=3),
        rule=RuleSpec(name=RuleName.FEDAVG),
        model=ModelSpec(kind="plugin", layers=(LayerShape(name="weight", shape=(DIMENSION,)),)),
        training=TrainingSpec(),
        rounds=500,
        seed=1,
    )
    return made.model_copy(update=changes)


class How(TypedDict, total=False):
    """A round's announcement; without these: weights of 1, at least three, the first model, an honest end.

    ``own`` is the requester's weight over the grid, where the list carries it; ``opens`` what a sum opens.
    """

    version: Required[int]
    model: np.ndarray
    least: int
    numerators: Mapping[str, int]
    end: RoundState | None
    purpose: Purpose
    previous: PastRelease | None
    own: int | None
    opens: Needs


def announced(of: Study, number: int, listed: tuple[str, ...], how: How) -> tuple[WeightList, Announcement]:
    """A weight list, whatever it says, and the announcement that names it."""
    wanted, model = how.get("numerators", {}), np.asarray(how.get("model", START), "<f4")
    weights = WeightList(
        study_digest=of.digest(),
        round=number,
        grid=GRID,
        weights=tuple(ListedWeight(site=site, numerator=wanted.get(site, GRID)) for site in listed),
        requester=how.get("own"),
        salt="cd" * 32,
    )
    purpose = how.get("purpose", Purpose.UPDATE)
    return weights, Announcement(
        study_digest=of.digest(),
        round=number,
        listed=listed,
        least_contributors=how.get("least", 3),
        opens=purpose.plan.opened(how.get("opens", Needs.NOTHING)),
        purpose=purpose,
        model_version=how["version"],
        model_digest=model_digest(SITE_KEY, of.digest(), number, model.tobytes()),
        weight_list_digest=weights.digest(),
        closes_at_s=10**9 + 60,
    )


def agreed_over(told: Announcement, sites: tuple[str, ...]) -> AgreedSet:
    """The set that both servers hold of these sites, under made-up commitments."""
    digest = told.digest()
    held = tuple(
        CollectedContribution(site=s, announcement_digest=digest, commitment_a=_DIGEST, commitment_b=_DIGEST)
        for s in sites
    )
    return AgreedSet(
        study_digest=told.study_digest, round=told.round, attempt=1, announcement_digest=digest, contributions=held
    )


def signed_by_both(agreed: AgreedSet) -> Signed[AgreedSet]:
    a, b = (PARTIES.keys_of(ROSTER.operator(side).name) for side in Side)
    return countersign(sign(agreed, a.name, a.signing), b.name, b.signing)


def by_requester(message: M) -> Signed[M]:
    return sign(message, REQUESTER, PARTIES.keys_of(REQUESTER).signing)


def by_operator(side: Side, message: M) -> Signed[M]:
    operator = ROSTER.operator(side).name
    return sign(message, operator, PARTIES.keys_of(operator).signing)


@dataclass
class Relay:
    """One server's mail, and the receipts that it shows a site."""

    side: Side
    mail: dict[str, bytes] = field(default_factory=dict)
    receipts: tuple[ContributedRound, ...] = ()

    def get_mail(self, name: str, topic: str, recipient: str, sender: str, *_: object) -> bytes:
        return self.mail[f"{name}/{topic}/{recipient}"]

    def fetch_mail(self, name: str, topic: str, recipient: str, sender: str, into: Path, *_: object) -> None:
        into.write_bytes(self.mail[f"{name}/{topic}/{recipient}"])

    def put_mail(self, name: str, topic: str, recipient: str, body: Body) -> None:
        self.mail[f"{name}/{topic}/{recipient}"] = b"".join(body.pieces())

    def fetch_output(self, name: str, round_number: int, *_: object) -> object:
        raise OutputGone(f"the output of round {round_number} is no longer kept")

    def contributed(self, nonce: str, after: object) -> Signed[Message]:
        page = ContributedRounds(site=self.mail["asking"].decode(), nonce=nonce, rounds=self.receipts, more=False)
        return by_operator(self.side, page)


@dataclass
class Round:
    """The outcome of one announced round: who took part, their sum, and the evidence of its release."""

    decisions: dict[str, Decision]
    sum: np.ndarray
    past: PastRelease

    @property
    def refused(self) -> dict[str, str]:
        return {site: decision.reason for site, decision in self.decisions.items() if not decision.accepted}


class Federation:
    """The seven sites; each has one state folder, whatever the studies. A context manager."""

    def __init__(self, folder: Path, policy: SitePolicy | None = None) -> None:
        self._folder = folder
        self._policy = policy or SitePolicy()
        self._open = ExitStack()
        self.learners = {site: Quadratic(number, DIMENSION) for number, site in enumerate(SITES, 1)}
        self.relays = {site: {side: Relay(side, {"asking": site.encode()}) for side in Side} for site in SITES}
        self._contexts: dict[str, SiteContext] = {}
        self._agents: dict[tuple[str, str], Contributor] = {}
        self._chain = RosterChain(PARTIES.roster)
        self._keys = {site: PARTIES.keys_of(site) for site in SITES}

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def restart(self, site: str) -> None:
        """End its process; its files stay."""
        self._contexts.pop(site, None)
        for key in [key for key in self._agents if key[0] == site]:
            del self._agents[key]

    def renew(self, *sites: str) -> None:
        """These sites have other keys from now on, by a change that everybody has; all agents start again."""
        chain = self._chain
        self._keys |= {site: renewed_keys(self._keys[site], chain.number + 1) for site in sites}
        samples = {site: there(chain.head.party(site), site).samples for site in sites}
        given = tuple(claimed(self._keys[site], chain.first_digest, samples=samples[site]) for site in sites)
        first, *others = signers(chain.head)
        change = sign(proposed(chain, Wanted(given=given), "keys are renewed"), first, PARTIES.keys_of(first).signing)
        for name in others:
            change = countersign(change, name, PARTIES.keys_of(name).signing)
        self._chain = chain.extended_by(change)
        for site in SITES:
            self.restart(site)

    def state_dir(self, site: str) -> Path:
        return self._folder / site

    def agent(self, site: str, of: Study) -> Contributor:
        """One site's real agent in a study, welcomed to the starting model."""
        if (site, of.name) not in self._agents:
            made = self.unwelcomed(site, of)
            if made.state.model_version is None:
                made.adopt_model(START, 0, site_key=SITE_KEY.hex())
            self._agents[site, of.name] = made
        return self._agents[site, of.name]

    def unwelcomed(self, site: str, of: Study) -> Contributor:
        """One site's real agent in a study, as its folder has it."""
        context = self._context(site)
        return Contributor(context, by_requester(of), StudyJournal(context.state_dir, of.name))

    def welcome(
        self, agent: Contributor, model: np.ndarray, version: int, previous: PastRelease | None = None
    ) -> np.ndarray | None:
        """The requester's letter with a model of its choice, signed and sealed as ever. -> the model the agent has then

        ``previous`` is the evidence of a release that is to have led to it.
        """
        of, site, data = agent.study, agent.context.site, np.asarray(model, "<f4").tobytes()
        letter = Welcome(
            study_digest=of.digest(),
            site=site,
            model_version=version,
            checkpoint_digest=hashlib.sha256(data).hexdigest(),
            site_key=SITE_KEY.hex(),
            content_key=_CONTENT_KEY,
            previous=previous,
        )
        self._mail(site, of, "welcome", by_requester(letter), version)
        checkpoint = seal_checkpoint(data, bytes.fromhex(_CONTENT_KEY))
        for relay in self.relays[site].values():
            relay.mail[f"{of.name}/checkpoint-{version}/every-site"] = checkpoint
        topics = (f"welcome-{version}/{REQUESTER}", f"checkpoint-{version}/{REQUESTER}")
        view = StudyView(study=of.name, study_digest=of.digest(), cursor=1, ready=(), mail=topics)
        agent.watch.both = lambda: (view, view)  # type: ignore[method-assign]  # no thread looks
        agent.react()
        return None if agent.state.model_version is None else agent.require_model()

    def _context(self, site: str) -> SiteContext:
        if site not in self._contexts:
            self.state_dir(site).mkdir(parents=True, exist_ok=True)
            ledger = Ledger(self.state_dir(site) / "ledger.jsonl")
            self._open.callback(ledger.close)
            self._contexts[site] = SiteContext(
                site=site,
                keys=self._keys[site],
                held=HeldRoster(self._chain),
                clients=self.relays[site],  # type: ignore[arg-type]  # mail is all it asks for
                randomness=SystemRandomness(),
                state_dir=self.state_dir(site),
                policy=self._policy,
                make_learner=lambda *_: self.learners[site],
                training_seed=lambda _: 1,
                emit=lambda _: None,
                ledger=ledger,
                stop=threading.Event(),
                asks_people=False,
                clock=ToldClock(lambda: 1e9),
            )
        return self._contexts[site]

    # --- the requester's script ---

    def serve(self, of: Study, site: str, model: np.ndarray, version: int) -> None:
        """Let the site have taken this model for this version; what else would refuse it is tested elsewhere."""
        self.agent(site, of).adopt_model(np.asarray(model, dtype=np.float32), version)

    def round(self, of: Study, number: int, listed: tuple[str, ...], **how: Unpack[How]) -> Round:
        """Announce to the listed sites; whoever accepts is in the sum, which is released, skipped, or neither."""
        weights, plain = announced(of, number, listed, how)
        told = plain.model_copy(update={"roster_head": self._chain.named_head})
        views = self.views(told)
        decisions = {site: self.shown(of, site, weights, views, how.get("previous")) for site in listed}
        accepted = tuple(site for site in listed if decisions[site].accepted)
        total = np.zeros(DIMENSION)
        for site in accepted:
            agent = self.agent(site, of)
            agent.encode(told, there(weights.numerator_of(site), f"weight of {site}"))
            vector = agent.encoded_file(told)
            total += decode(vector(0, vector.length), agent.study.parameters_in(told.purpose))[:DIMENSION]
        made = Round(decisions, total, self._evidence(told, weights, accepted))
        end = how.get("end", RoundState.RELEASED)
        if end is RoundState.RELEASED and len(accepted) >= told.least_contributors:
            self._release(of, made, accepted, total)
        if end is RoundState.SKIPPED:
            self._skip(of, number, listed)
        return made

    def views(self, told: Announcement) -> tuple[RoundView, ...]:
        return tuple(self._view(told, side) for side in Side)

    def shown(
        self,
        of: Study,
        site: str,
        weights: WeightList,
        views: tuple[RoundView, ...],
        previous: PastRelease | None = None,
    ) -> Decision:
        """Let one site decide about these two servers' views, with this list in its mail."""
        self._mail(site, of, "weights", WeightMail(weight_list=weights, previous=previous), views[0].round)
        return self.agent(site, of).decisions.decide(*views)

    def _mail(self, site: str, of: Study, kind: str, letter: Message, number: int) -> None:
        party = there(self._chain.head.party(site), site)
        sealed = seal_letter(letter, kind, of.digest(), REQUESTER, party, number)
        for relay in self.relays[site].values():
            relay.mail[f"{of.name}/{kind}-{number}/{site}"] = sealed

    def _skip(self, of: Study, number: int, listed: tuple[str, ...]) -> None:
        for site in listed:
            agent = self.agent(site, of)
            drop_sum(agent.context, agent.study_digest, number)

    def _view(self, told: Announcement, side: Side) -> RoundView:
        operator = PARTIES.keys_of(ROSTER.operator(side).name)
        countersigned = countersign(by_requester(told), operator.name, operator.signing)
        return RoundView(round=told.round, attempt=1, state=RoundState.ANNOUNCED, announcement=countersigned)

    def _evidence(self, told: Announcement, weights: WeightList, accepted: tuple[str, ...]) -> PastRelease:
        sites = (REQUESTER, *accepted)
        agreed = agreed_over(told, sites)
        return PastRelease(
            announcement=told,
            weight_list=weights,
            agreed_set=signed_by_both(agreed),
            release_set=by_requester(release_set(agreed, sites)),
        )

    def _release(self, of: Study, made: Round, accepted: tuple[str, ...], total: np.ndarray) -> None:
        """Every site of the sum opens it; the step is the requester's choice, so here the model stays put."""
        for site in accepted:
            agent = self.agent(site, of)
            average = (total / len(accepted)).astype(np.float32)
            agent.average = lambda past, average=average: average  # type: ignore[method-assign, misc]  # opened here
            agent._learner = Stays(self.learners[site])  # applies, no more
            agent.take_release(made.past)
            agent.save(last_recorded_round=made.past.announcement.round)
            agent._learner = self.learners[site]


class Quadratic(LightLearner):
    """The gradient of |A (x - target)|^2 / 2 over all of a site's data: no randomness."""

    def __init__(self, number: int, dimension: int) -> None:
        rng = np.random.default_rng(number)
        self._matrix = rng.normal(size=(dimension, dimension)) / np.sqrt(dimension)
        self._target = rng.normal(size=dimension)
        self.asked: list[int] = []

    def gradient(self, model: np.ndarray) -> np.ndarray:
        found = self._matrix.T @ (self._matrix @ (model - self._target))
        return np.asarray(found * min(1.0, 2.0 / np.linalg.norm(found)), dtype=np.float32)

    def update(self, model: np.ndarray, round_number: int) -> np.ndarray:
        self.asked.append(round_number)
        return self.gradient(model)

    def class_counts(self) -> tuple[int, ...]:
        return (10, 40)


class Stays(Odd):
    """A learner whose step is too small to see."""

    def apply(self, model: np.ndarray, aggregate: np.ndarray) -> np.ndarray:
        return model


def renewed_keys(keys: PartyKeys, number: int) -> PartyKeys:
    """Other keys under the same name, for the change of that number."""
    drawn = SeededRandomness(bytes(32))
    signing = drawn.bytes(SIGNING_KEY_BYTES, f"signing key of {keys.name} {number}")
    sealing = drawn.bytes(SEALING_KEY_BYTES, f"sealing key of {keys.name} {number}")
    return replace(keys, signing=generate_signing_key(signing), sealing=generate_sealing_key(sealing))
