"""A requester and contributors that follow the protocol with hand-made updates; no training, no daemon."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from client_agent.study.take_release import own_key_id
from protocol.arithmetic.prg import Usage, expand
from protocol.arithmetic.ring import Ring, from_bytes, to_bytes
from protocol.mpc.distance import query
from protocol.mpc.measurement import OpenedSite, OpeningShare, open_all
from protocol.mpc.quantity import value_count
from protocol.mpc.sketch import sketch_vector
from protocol.parameters import RANGE_PROJECTIONS, Needs, StudyParameters
from protocol.release import open_output_chunk
from protocol.rounds.agree import check_transcript
from protocol.sharing import Side, split, vector_side
from protocol.wire import paths
from protocol.wire.authentic import require_signatures, sign
from protocol.wire.channel.sealing import SealedReader, seal_stream
from protocol.wire.commitment import commitment_to
from protocol.wire.keys import SealingPublicKey
from protocol.wire.messages import (
    AgreedSet,
    Announcement,
    ChallengeTranscript,
    ContributionHeader,
    EndCause,
    LayerShape,
    ModelSpec,
    OpeningHeader,
    OutputHeader,
    QueryHeader,
    ReadyNotice,
    Receipt,
    ReleaseSet,
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
    TrainingSpec,
)
from tests.integration.federation import Federation
from tests.integration.signed_client import SignedClient


def make_study(federation: Federation, dimension: int, name: str = "trial", **changes: object) -> Study:
    values: dict[str, object] = {
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
    return Study(**(values | changes))


@dataclass
class Sealed:
    """Both servers' sealed shares of one contribution."""

    bodies: dict[Side, bytes]
    x: Ring


@dataclass
class FakeSites:
    """All sites of a federation in one object, driven step by step."""

    federation: Federation
    study: Study
    clients: dict[str, SignedClient] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clients = {p.name: self.federation.client(p.name) for p in self.federation.roster.sites}
        self.requester = self.federation.roster.requester
        self.me = self.clients[self.requester]
        self.contributors = [p.name for p in self.federation.roster.contributors]

    def close(self) -> None:
        for client in self.clients.values():
            client.close()

    def path(self, template: str, **values: str | int) -> str:
        return paths.fill(template, study=self.study.name, **values)

    # --- study ---

    def create(self) -> dict[Side, Signed[Study]]:
        signed = sign(self.study, self.requester, self.me.keys.signing)
        body = signed.canonical()
        return {side: Signed[Study].parse(self.me.ok(side, "POST", paths.STUDIES, body)) for side in Side}

    def ready(self) -> None:
        for name, client in self.clients.items():
            notice = ReadyNotice(study_digest=self.study.digest(), site=name).canonical()
            for side in Side:
                client.ok(side, "POST", self.path(paths.READY), notice)

    def end(self, state: StudyEndState = StudyEndState.COMPLETED, reason: str = "done") -> None:
        message = StudyEnd(study_digest=self.study.digest(), state=state, cause=EndCause.ALL_ROUNDS_DONE, reason=reason)
        body = sign(message, self.requester, self.me.keys.signing).canonical()
        for side in Side:
            self.me.ok(side, "POST", self.path(paths.END), body)

    def view(self, side: Side, name: str | None = None, after: int = 0, wait_s: float = 0) -> StudyView:
        client = self.me if name is None else self.clients[name]
        path = self.path(paths.VIEW) + f"?after={after}&wait_s={wait_s}"
        return StudyView.parse(client.ok(side, "GET", path))

    def wait_round(self, side: Side, round_number: int, *states: RoundState, within_s: float = 30) -> RoundView:
        deadline, after = time.monotonic() + within_s, 0
        view = None
        while time.monotonic() < deadline:
            view = self.view(side, after=after, wait_s=5)
            after = view.cursor
            if view.current and view.current.round == round_number and view.current.state in states:
                return view.current
        raise AssertionError(f"side {side}: round {round_number} never {states}; last {view}\n{self._logs()}")

    def wait_transcript(self, side: Side, round_number: int) -> RoundView:
        deadline, after = time.monotonic() + 30, 0
        while time.monotonic() < deadline:
            view = self.view(side, after=after, wait_s=5)
            after = view.cursor
            current = view.current
            if current and current.round == round_number and current.transcript and current.agreed_set:
                return current
        raise AssertionError(f"side {side}: no transcript\n{self._logs()}")

    def _logs(self) -> str:
        return "\n".join(f"--- {s.side}\n{s.log[-3000:]}" for s in self.federation.servers.values())

    # --- a round ---

    def announcement(
        self,
        number: int,
        *,
        listed: Sequence[str] | None = None,
        opens: Needs = Needs.DISTANCES,
        closes_in_s: float = 500.0,
    ) -> Announcement:
        return Announcement(
            study_digest=self.study.digest(),
            round=number,
            listed=tuple(self.contributors if listed is None else listed),
            least_contributors=3,
            opens=opens,
            model_version=number - 1,
            model_digest="00" * 32,
            weight_list_digest="11" * 32,
            closes_at_s=int(time.time() + closes_in_s),
        )

    def announce(self, announcement: Announcement, sides: Sequence[Side] = tuple(Side)) -> None:
        body = sign(announcement, self.requester, self.me.keys.signing).canonical()
        for side in sides:
            answer = self.me.ok(side, "POST", self.path(paths.ANNOUNCEMENT, round=announcement.round), body)
            signed = Signed[Announcement].parse(answer)
            operator = self.federation.roster.operator(side).name
            assert require_signatures(signed, self.federation.roster, [self.requester, operator]) == announcement

    def seal_contribution(
        self, sender: str, x: Ring, announcement: Announcement, attempt_number: int = 1, **changes: object
    ) -> Sealed:
        seed_share, vector_share = split(x, secrets.token_bytes(32))
        vector_at = vector_side(self.federation.roster.place(sender))
        plain = {vector_at: to_bytes(vector_share.vector), vector_at.other: seed_share.seed}
        salts = {side: secrets.token_bytes(32) for side in Side}
        content_keys = {side: secrets.token_bytes(32) for side in Side}
        commitments = {side: commitment_to(plain[side], salts[side], content_keys[side]).hex() for side in Side}
        bodies = {}
        for side in Side:
            values: dict[str, object] = {
                "study_digest": self.study.digest(),
                "round": announcement.round,
                "attempt": attempt_number,
                "site": sender,
                "side": side,
                "announcement_digest": announcement.digest(),
                "commitment_a": commitments[Side.A],
                "commitment_b": commitments[Side.B],
                "share_kind": ShareKind.VECTOR if side is vector_at else ShareKind.SEED,
                "length": x.size,
            }
            header = ContributionHeader(**(values | changes)).canonical()
            bodies[side] = b"".join(
                seal_stream(header, [plain[side]], self.operator_key(side), content_keys[side], salts[side])
            )
        return Sealed(bodies, x)

    def operator_key(self, side: Side) -> SealingPublicKey:
        return SealingPublicKey.from_bytes(bytes.fromhex(self.federation.roster.operator(side).sealing_key))

    def contribution_path(self, number: int, attempt: int = 1) -> str:
        return self.path(paths.CONTRIBUTION, round=number, attempt=attempt)

    def contribute(self, site: str, sealed: Sealed, number: int, attempt: int = 1) -> dict[Side, Signed[Receipt]]:
        path = self.contribution_path(number, attempt)
        receipts = {}
        for side in Side:
            receipts[side] = Signed[Receipt].parse(self.clients[site].ok(side, "PUT", path, sealed.bodies[side]))
            require_signatures(receipts[side], self.federation.roster, [self.federation.roster.operator(side).name])
        return receipts

    def send_queries(self, current: RoundView, own: Ring, numerators: Mapping[str, int]) -> bytes:
        assert current.agreed_set is not None
        assert current.transcript is not None
        agreed, stated = current.agreed_set.message, current.transcript.message
        both = [self.federation.roster.operator_a.name, self.federation.roster.operator_b.name]
        require_signatures(current.agreed_set, self.federation.roster, both)
        require_signatures(current.transcript, self.federation.roster, both)
        challenge = check_transcript(current.round, agreed, stated)
        parameters = self.study.parameters
        targets = tuple(site for site in agreed.sites if site != self.requester)
        sketch = sketch_vector(challenge, own, parameters)
        queries = np.concatenate([query(sketch, numerators[t], parameters.weight_grid) for t in targets])
        seed = secrets.token_bytes(32)
        plain = {Side.A: seed, Side.B: to_bytes(queries - expand(seed, Usage.QUERY, queries.size))}
        for side in Side:
            header = QueryHeader(
                transcript_digest=stated.digest(),
                side=side,
                share_kind=ShareKind.SEED if side is Side.A else ShareKind.VECTOR,
                targets=targets,
                length=parameters.sketched_length,
            )
            body = b"".join(
                seal_stream(
                    header.canonical(),
                    [plain[side]],
                    self.operator_key(side),
                    secrets.token_bytes(32),
                    secrets.token_bytes(32),
                )
            )
            self.me.ok(side, "POST", self.path(paths.QUERIES, round=current.round, attempt=current.attempt), body)
        return challenge

    def openings(self, current: RoundView, numerators: Mapping[str, int]) -> dict[str, OpenedSite]:
        shares = {side: self._opening(side, current) for side in Side}
        listed = {share.site: numerators.get(share.site, 4) for share in shares[Side.A]}
        opens = current.announcement.message.opens
        opened = open_all(shares[Side.A], shares[Side.B], listed, self.study.parameters, opens)
        return {one.site: one for one in opened}

    def _opening(self, side: Side, current: RoundView) -> list[OpeningShare]:
        path = self.path(paths.OPENING, round=current.round, attempt=current.attempt)
        body = self.me.ok(side, "GET", path)
        assert self.me.ok(side, "GET", path) == body
        reader = SealedReader(self.me.keys.sealing)
        plain = b"".join([*reader.feed(body), reader.finish()])
        header = OpeningHeader.parse(reader.header or b"")
        assert header.side is side
        n = RANGE_PROJECTIONS
        counts = [value_count(header.opens, i, site == self.requester) for i, site in enumerate(header.checked)]
        numbers = from_bytes(plain, n * len(counts) + sum(counts))
        values = np.split(numbers[n * len(counts) :], np.cumsum(counts)[:-1])
        return [OpeningShare(site, numbers[i * n : (i + 1) * n], values[i]) for i, site in enumerate(header.checked)]

    def release_body(self, current: RoundView, sites: Sequence[str] | None = None) -> bytes:
        assert current.agreed_set is not None
        agreed: AgreedSet = current.agreed_set.message
        message = ReleaseSet(
            study_digest=self.study.digest(),
            round=current.round,
            attempt=current.attempt,
            agreed_set_digest=agreed.digest(),
            sites=tuple(agreed.sites if sites is None else sites),
        )
        return sign(message, self.requester, self.me.keys.signing).canonical()

    def release(self, current: RoundView, sites: Sequence[str] | None = None, to: Sequence[Side] = tuple(Side)) -> None:
        body = self.release_body(current, sites)
        for side in to:
            self.me.ok(side, "PUT", self.path(paths.RELEASE_SET, round=current.round, attempt=current.attempt), body)

    def output(self, site: str, number: int) -> Ring:
        """The opened sum."""
        masks = Side.A if number % 2 else Side.B
        halves = {}
        for side in Side:
            body = self.clients[site].ok(side, "GET", self.path(paths.OUTPUT, round=number))
            reader = SealedReader(self.clients[site].keys.sealing)
            halves[side] = b"".join([*reader.feed(body), reader.finish()])
            header = OutputHeader.parse(reader.header or b"")
            assert (header.recipient, header.side) == (own_key_id(self.federation.roster, site), side)
            assert header.share_kind is (ShareKind.SEED if side is masks else ShareKind.VECTOR)
        vector = from_bytes(halves[masks.other], self.study.parameters.dimension)
        return open_output_chunk(vector, halves[masks], 0)

    def transcript_of(self, current: RoundView) -> ChallengeTranscript:
        assert current.transcript is not None
        return current.transcript.message
