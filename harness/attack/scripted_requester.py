"""A requester and contributors that follow the protocol with hand-made updates; no training, no daemon."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from client_agent.requester.openings import query_vector, seal_queries
from client_agent.study.release import own_key_id
from harness.attack.forgeries import honest_contribution, release_set
from harness.attack.signed_client import Reached, SignedClient, opened, there
from host.randomness import SystemRandomness
from protocol.arithmetic.fixed_point import unpacked
from protocol.arithmetic.ring import Ring, from_bytes, lifted, octets
from protocol.messages import paths
from protocol.messages.bodies import read_opening
from protocol.messages.control import (
    AgreedSet,
    Announcement,
    EndCause,
    Go,
    LayerShape,
    Message,
    ModelSpec,
    OpeningHeader,
    OutputCommitment,
    OutputHeader,
    ReadyNotice,
    Receipt,
    ReleaseSet,
    Roster,
    RoundState,
    RoundView,
    RuleName,
    RuleSpec,
    ShareKind,
    Signed,
    Study,
    StudyEnd,
    StudyEndState,
    StudyView,
    TagCheck,
    TagSeed,
    TagsFailed,
    TagShares,
    TrainingSpec,
    require_signatures,
    sign,
)
from protocol.mpc.measurement import OpenedSite, OpeningShare, open_all
from protocol.parameters import TAG_COORDINATES, Needs, StudyParameters
from protocol.protection import shares as tagged
from protocol.release import masking_side, open_output_chunk
from protocol.rounds.agreement import check_transcript
from protocol.sharing import ChunkSource, Side
from protocol.tags import (
    attempt_key,
    judged,
    require_check,
    require_commitment,
    seed_hash,
    shown_seed,
)

R = TypeVar("R", bound=Reached)
M = TypeVar("M", bound=Message)


def make_study(federation: Reached, dimension: int, name: str = "trial", **changes: object) -> Study:
    values: dict[str, Any] = {
        "name": name,
        "roster_digest": federation.roster.digest(),
        "parameters": StudyParameters(
            dimension=dimension, clip_norm=1.0, weight_grid=4, least_contributors=3, encoded_norm_log2=21
        ),
        "rule": RuleSpec(name=RuleName.WEIGHT_EROSION),
        "model": ModelSpec(kind="linear", layers=(LayerShape(name="w", shape=(dimension,)),)),
        "training": TrainingSpec(),
        "rounds": 50,
        "round_deadline_s": 600.0,
    }
    return Study.model_validate(values | changes)


def evidence_of(view: RoundView, roster: Roster) -> tuple[AgreedSet, bytes, str]:
    """The agreed set, the challenge and the transcript's digest, once both servers signed them."""
    both = [roster.operator_a.name, roster.operator_b.name]
    agreed = require_signatures(there(view.agreed_set, "agreed set"), roster, both)
    stated = require_signatures(there(view.transcript, "transcript"), roster, both)
    return agreed, check_transcript(view.round, agreed, stated), stated.digest()


def sealed_queries(
    view: RoundView,
    of: Study,
    own: Ring | ChunkSource,
    numerators: Mapping[str, int] | None,
    roster: Roster,
    under: Roster | None = None,
) -> tuple[bytes, dict[Side, bytes]]:
    """The challenge that both servers signed, and the requester's queries for it, sealed to each server.

    ``numerators``: contributors' weights over the grid, 1 where there are none. ``under``: the roster under which the
    round runs, where it is not the newest one.
    """
    (agreed, challenge, stated), parameters = evidence_of(view, roster), of.parameters
    targets = tuple(site for site in agreed.sites if site != roster.requester)
    weights = dict.fromkeys(targets, parameters.weight_grid) if numerators is None else numerators
    source: ChunkSource = (lambda start, stop: own[start:stop]) if isinstance(own, np.ndarray) else own
    queries = query_vector(challenge, source, tuple(weights[target] for target in targets), parameters)
    on, drawn = under or roster, SystemRandomness()
    return challenge, seal_queries(queries, targets, stated, view.round, on, parameters, drawn, "queries")


@dataclass
class ScriptedRequester(Generic[R]):
    """The requester and all other sites of a federation in one object, driven step by step."""

    federation: R
    study: Study
    clients: dict[str, SignedClient] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clients = {
            p.name: SignedClient(self.federation, self.federation.keys(p.name)) for p in self.federation.roster.sites
        }
        self.requester = self.federation.roster.requester
        self.me = self.clients[self.requester]
        self.contributors = [p.name for p in self.federation.roster.contributors]

    def close(self) -> None:
        for client in self.clients.values():
            client.close()

    def path(self, template: str, **values: str | int) -> str:
        return paths.fill(template, study=self.study.name, **values)

    def _at(self, template: str, place: RoundView | Go | TagsFailed) -> str:
        return self.path(template, round=place.round, attempt=place.attempt)

    def _to(self, sides: Sequence[Side], method: str, path: str, body: bytes) -> None:
        for side in sides:
            self.me.ok(side, method, path, body)

    def _signed(self, message: M) -> Signed[M]:
        return sign(message, self.requester, self.me.keys.signing)

    # --- study ---

    def create(self) -> dict[Side, Signed[Study]]:
        body = self._signed(self.study).canonical()
        return {side: Signed[Study].parse(self.me.ok(side, "POST", paths.STUDIES, body)) for side in Side}

    def ready(self) -> None:
        for name, client in self.clients.items():
            notice = ReadyNotice(study_digest=self.study.digest(), site=name).canonical()
            for side in Side:
                client.ok(side, "POST", self.path(paths.READY), notice)

    def end(self, state: StudyEndState = StudyEndState.COMPLETED, reason: str = "done") -> None:
        self._to(tuple(Side), "POST", self.path(paths.END), self.ended(state, reason).canonical())

    def ended(self, state: StudyEndState = StudyEndState.COMPLETED, reason: str = "done") -> Signed[StudyEnd]:
        message = StudyEnd(study_digest=self.study.digest(), state=state, cause=EndCause.ALL_ROUNDS_DONE, reason=reason)
        return self._signed(message)

    def view(self, side: Side, name: str | None = None, after: int = 0, wait_s: float = 0) -> StudyView:
        client = self.me if name is None else self.clients[name]
        path = self.path(paths.VIEW) + f"?after={after}&wait_s={wait_s}"
        return StudyView.parse(client.ok(side, "GET", path))

    def wait_round(self, side: Side, number: int, *states: RoundState, within_s: float = 30) -> RoundView:
        """The round's view once it is in one of these states."""
        return self._wait(side, number, lambda view: view.state in states, f"in {states}", within_s)

    def wait_transcript(self, side: Side, number: int) -> RoundView:
        return self._wait(side, number, lambda view: bool(view.transcript and view.agreed_set), "with a transcript", 30)

    def _wait(
        self, side: Side, number: int, holds: Callable[[RoundView], bool], what: str, within_s: float
    ) -> RoundView:
        deadline, view, after = time.monotonic() + within_s, None, 0
        while time.monotonic() < deadline:
            view = self.view(side, after=after, wait_s=5)
            after = view.cursor
            if view.current and view.current.round == number and holds(view.current):
                return view.current
        raise AssertionError(f"side {side}: round {number} never {what}; last {view}\n{self.federation.tails()}")

    # --- a round ---

    def announcement(
        self,
        number: int,
        *,
        listed: Sequence[str] | None = None,
        opens: Needs = Needs.DISTANCES,
        closes_in_s: float = 500.0,
    ) -> Announcement:
        digest = self.study.digest()
        return Announcement(
            study_digest=digest,
            round=number,
            listed=tuple(self.contributors if listed is None else listed),
            least_contributors=3,
            opens=opens,
            model_version=number - 1,
            model_digest="00" * 32,
            weight_list_digest="11" * 32,
            closes_at_s=int(self.federation.clock.now() + closes_in_s),
            tag_seed_hash=seed_hash(digest, number, self.seed(number)) if self.study.tags else None,
        )

    def announce(self, announcement: Announcement, sides: Sequence[Side] = tuple(Side)) -> None:
        body = self._signed(announcement).canonical()
        for side in sides:
            answer = self.me.ok(side, "POST", self.path(paths.ANNOUNCEMENT, round=announcement.round), body)
            signed = Signed[Announcement].parse(answer)
            operator = self.federation.roster.operator(side).name
            assert require_signatures(signed, self.federation.roster, [self.requester, operator]) == announcement

    def seal_contribution(
        self, sender: str, x: Ring, announcement: Announcement, attempt: int = 1
    ) -> dict[Side, bytes]:
        """Both servers' sealed shares."""
        rand, bits = secrets.token_bytes(32), self.study.parameters.ring_bits
        honest = honest_contribution(x, announcement, sender, self.federation.roster, rand, attempt, bits)
        return {side: honest[side].sealed() for side in Side}

    def contribution_path(self, number: int, attempt: int = 1) -> str:
        return self.path(paths.CONTRIBUTION, round=number, attempt=attempt)

    def contribute(
        self, site: str, sealed: Mapping[Side, bytes], number: int, attempt: int = 1
    ) -> dict[Side, Signed[Receipt]]:
        path = self.contribution_path(number, attempt)
        receipts = {}
        for side in Side:
            receipts[side] = Signed[Receipt].parse(self.clients[site].ok(side, "PUT", path, sealed[side]))
            require_signatures(receipts[side], self.federation.roster, [self.federation.roster.operator(side).name])
        return receipts

    def send_queries(self, current: RoundView, own: Ring, numerators: Mapping[str, int]) -> bytes:
        challenge, bodies = sealed_queries(current, self.study, own, numerators, self.federation.roster)
        for side, body in bodies.items():
            self.me.ok(side, "POST", self._at(paths.QUERIES, current), body)
        return challenge

    def openings(self, current: RoundView, numerators: Mapping[str, int]) -> dict[str, OpenedSite]:
        shares = {side: self._opening(side, current) for side in Side}
        listed = {share.site: numerators.get(share.site, 4) for share in shares[Side.A]}
        opens = current.announcement.message.opens
        found = open_all(shares[Side.A], shares[Side.B], listed, self.study.parameters, opens)
        return {one.site: one for one in found}

    def _opening(self, side: Side, current: RoundView) -> tuple[OpeningShare, ...]:
        path = self._at(paths.OPENING, current)
        body = self.me.ok(side, "GET", path)
        assert self.me.ok(side, "GET", path) == body
        header, _ = opened(body, self.me.keys.sealing, OpeningHeader)
        assert header.side is side
        return read_opening(body, header, self.requester, self.me.keys.sealing)

    def release_body(self, current: RoundView, sites: Sequence[str] | None = None) -> bytes:
        agreed: AgreedSet = there(current.agreed_set, "agreed set").message
        message = release_set(agreed, tuple(agreed.sites if sites is None else sites))
        return self._signed(message).canonical()

    def release(self, current: RoundView, sites: Sequence[str] | None = None, to: Sequence[Side] = tuple(Side)) -> None:
        self._to(to, "PUT", self._at(paths.RELEASE_SET, current), self.release_body(current, sites))

    def output(self, site: str, number: int) -> Ring:
        masks = masking_side(number)
        halves = {}
        for side in Side:
            body = self.clients[site].ok(side, "GET", self.path(paths.OUTPUT, round=number))
            header, halves[side] = opened(body, self.clients[site].keys.sealing, OutputHeader)
            assert (header.recipient, header.side) == (own_key_id(self.federation.roster, site), side)
            bits = self.study.parameters.ring_bits
            assert header.share_kind is (ShareKind.SEED if side is masks else ShareKind.vector_of(bits))
        vector = unpacked(halves[masks.other], self.study.parameters.dimension, bits)
        return lifted(open_output_chunk(vector, halves[masks], 0), bits)

    # --- sums with tags; the seed of a round's tags follows from its number -------------------------------------------

    def seed(self, number: int) -> bytes:
        return hashlib.sha256(f"{self.study.name} seed of tags {number}".encode()).digest()

    def key(self, announcement: Announcement, attempt: int = 1) -> bytes:
        return attempt_key(announcement, attempt, shown_seed(self.seed(announcement.round)))

    def with_tags(self, x: Ring, announcement: Announcement, attempt: int = 1) -> Ring:
        """The vector that an honest site shares."""
        pieces = tagged.with_tags([octets(x)], announcement, attempt, self.seed(announcement.round).hex())
        return from_bytes(b"".join(pieces), x.size + TAG_COORDINATES).copy()

    def contribute_all(self, announcement: Announcement, vectors: Mapping[str, Ring], attempt: int = 1) -> None:
        for site, vector in vectors.items():
            sealed = self.seal_contribution(site, vector, announcement, attempt)
            self.contribute(site, sealed, announcement.round, attempt)

    def measured(self, number: int, own: Ring, numerators: Mapping[str, int]) -> RoundView:
        """Queries where the round asks for them, then both openings."""
        current = self.wait_transcript(Side.A, number)
        if current.announcement.message.opens.queried:
            self.send_queries(current, own, numerators)
        for side in Side:
            current = self.wait_round(side, number, RoundState.MEASURED)
        return current

    def committed(self, number: int) -> dict[Side, RoundView]:
        return {side: self.wait_round(side, number, RoundState.COMMITTED) for side in Side}

    def commitments(self, views: Mapping[Side, RoundView]) -> tuple[Signed[OutputCommitment], Signed[OutputCommitment]]:
        found = {side: there(views[side].commitment, "commitment") for side in Side}
        for side, one in found.items():
            require_commitment(one, self.release_of(views[side]), side, self.federation.roster)
        return found[Side.A], found[Side.B]

    def release_of(self, view: RoundView) -> ReleaseSet:
        return there(view.release_set, "release set").message

    def show_seed(self, side: Side, number: int, attempt: int = 1, seed: bytes | None = None) -> Signed[TagCheck]:
        shown = shown_seed(self.seed(number)) if seed is None else seed
        message = TagSeed(study_digest=self.study.digest(), round=number, attempt=attempt, seed=shown.hex())
        path = self.path(paths.TAG_SEED, round=number, attempt=attempt)
        return Signed[TagCheck].parse(self.me.ok(side, "PUT", path, message.canonical()))

    def judged(self, views: Mapping[Side, RoundView], kind: type[M]) -> Signed[M]:
        """Show the seed to both servers, and say whether their checks add up to zero: ``kind`` is what they do."""
        commitments, release = self.commitments(views), self.release_of(views[Side.A])
        a, b = (self.show_seed(side, release.round, release.attempt) for side in Side)
        for commitment, check in zip(commitments, (a, b), strict=True):
            require_check(check, commitment.message, self.federation.roster)
        said = judged(release, commitments, (a, b))
        assert isinstance(said, kind), said
        return self._signed(said)

    def fail(self, verdict: Signed[TagsFailed]) -> tuple[Signed[TagShares], Signed[TagShares]]:
        """Say so to B first: A ends the round as soon as it knows."""
        path, body = self._at(paths.TAGS_FAILED, verdict.message), verdict.canonical()
        b, a = (Signed[TagShares].parse(self.me.ok(side, "POST", path, body)) for side in (Side.B, Side.A))
        return a, b

    def released(self, number: int) -> dict[Side, RoundView]:
        return {side: self.wait_round(side, number, RoundState.RELEASED) for side in Side}
