"""Open a locked round: what both servers show of it, and what the requester concludes (docs/protocol.md 4, 6, 8, 15).

In a round with tags, both servers then fix what they will serve, get the seed, and say by how much their half's tags
are off. Zero in all: go. Otherwise nothing is served, and both servers' shares of single sites' errors say whose tags
are wrong. Of an attempt one word is signed, journalled before it is sent, and sent again as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from client_agent.net.server_client import ServerClient
from client_agent.requester.study import RequesterStudy, RoundPlan
from client_agent.site.failpoints import Point
from host.frozen import Frozen
from host.randomness import Randomness
from protocol.arithmetic.ring import Ring
from protocol.errors import ProtocolViolation, RefusedMessage, TranscriptMismatch, UnknownResource
from protocol.messages import bodies
from protocol.messages.control import (
    AgreedSet,
    Go,
    OpeningHeader,
    OutputCommitment,
    Purpose,
    ReleaseSet,
    Roster,
    RoundView,
    Signed,
    TagCheck,
    TagSeed,
    TagsFailed,
    TagShares,
    require_signatures,
)
from protocol.mpc import measurement
from protocol.mpc.measurement import OpenedSite, open_all
from protocol.mpc.sketch import sketch_shares
from protocol.parameters import StudyParameters
from protocol.rounds.agreement import check_transcript
from protocol.rounds.judgement import RequesterFacts, RoundRule, judge, judge_sum
from protocol.rules.interface import Measured
from protocol.sharing import ChunkSource, Side
from protocol.tags import judged, require_check, require_commitment, shown_seed, wrong_tags


def query_vector(challenge: bytes, own: ChunkSource, numerators: tuple[int, ...], parameters: StudyParameters) -> Ring:
    """w_i S g_0 of every target, one after the other; with all weights 1, S v for the inner products with v.

    Shapes:   -> uint64[targets * k'], ring 2^64
    """
    sketch = sketch_shares(challenge, [own], parameters)[0]
    pieces = [measurement.distance_query(sketch, numerator, parameters.weight_grid) for numerator in numerators]
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.uint64)


def seal_queries(
    queries: Ring,
    targets: tuple[str, ...],
    transcript_digest: str,
    round_number: int,
    roster: Roster,
    parameters: StudyParameters,
    randomness: Randomness,
    label: str,
) -> dict[Side, bytes]:
    """Both servers' sealed shares of the queries."""
    seed = randomness.bytes(32, f"query seed {label}")
    sealed: dict[Side, bytes] = {}
    for side in Side:
        header = bodies.Queries(transcript_digest, side, targets, parameters.sketched_length).header(round_number)
        secret = randomness.bytes(32, f"query content key {side} {label}")
        secret += randomness.bytes(32, f"query salt {side} {label}")
        share = bodies.query_content(header, queries, seed)
        sealed[side] = bodies.seal_body(header, [share], roster.operator(side).sealing, secret).whole()
    return sealed


AROUND_OPENED: Final = (Point.BEFORE_OPENED_JOURNALLED, Point.AFTER_OPENED_JOURNALLED)
_NOBODY: Final = {"took_part": (), "pairs": ()}


class Opened(Frozen):
    """The values that the requester opened about one attempt, and the release set that follows from them.

    Where nothing is summed there is no such set, and nobody took part in what says nothing.
    """

    measured: Measured
    left_out: tuple[str, ...]
    release_set: Signed[ReleaseSet] | None


class Openings:
    """The evidence of one round's attempts, checked and opened."""

    def __init__(self, owner: RequesterStudy, plan: RoundPlan) -> None:
        self._owner = owner
        self._context = owner.context
        self._plan = plan
        self._announcement = plan.announcement.message
        self._number = self._announcement.round

    def transcript(self, a: RoundView, b: RoundView) -> tuple[AgreedSet, bytes, str]:
        """The agreed set, the challenge and the transcript's digest, once both servers signed the same."""
        agreed = self._agreed(a, b)
        if a.transcript is None or b.transcript is None:
            raise UnknownResource(f"round {self._number}: a server shows a later state without its evidence")
        stated = require_signatures(a.transcript, self._context.roster, self._operators)
        if stated != b.transcript.message:
            raise TranscriptMismatch(f"round {self._number}: the two servers show different sets or challenges")
        challenge = check_transcript(self._number, agreed, stated)
        return agreed, challenge, stated.digest()

    def _agreed(self, a: RoundView, b: RoundView) -> AgreedSet:
        if a.agreed_set is None or b.agreed_set is None:
            raise UnknownResource(f"round {self._number}: a server shows a later state without its evidence")
        agreed = require_signatures(a.agreed_set, self._context.roster, self._operators)
        if agreed != b.agreed_set.message:
            raise TranscriptMismatch(f"round {self._number}: the two servers show different sets or challenges")
        if agreed.announcement_digest != self._announcement.digest():
            raise TranscriptMismatch(f"round {self._number}: the agreed set is bound to another announcement")
        return agreed

    @property
    def _operators(self) -> tuple[str, str]:
        roster = self._context.roster
        return roster.operator_a.name, roster.operator_b.name

    def opened(self, a: RoundView, b: RoundView, facts: RequesterFacts) -> Opened:
        """Opened once and journalled, so that one release set is signed a round."""
        journal = self._owner.journal
        path = journal.attempt_folder(self._number, a.attempt) / "opened.json"
        return journal.once(path, Opened, lambda: self._judged_sites(a, b, facts), AROUND_OPENED)

    def _judged_sites(self, a: RoundView, b: RoundView, facts: RequesterFacts) -> Opened:
        """Judge by both servers' shares; where nothing can be measured, whoever is in the agreed set stays."""
        if self._announcement.protection.plan.opens:
            agreed, sites = self.sites(a, b)
        else:
            agreed = self._agreed(a, b)
            sites = tuple(OpenedSite(site, True) for site in agreed.sites)
        return self.judged(agreed, sites, a.attempt, facts)

    def sites(self, a: RoundView, b: RoundView) -> tuple[AgreedSet, tuple[OpenedSite, ...]]:
        """Everybody's range check and what else the attempt opens, from both servers' shares.

        Raises: UnknownResource; evidence that does not hold
        """
        study = self._owner.study
        agreed, _, transcript_digest = self.transcript(a, b)
        most = bodies.most_opening_bytes(len(agreed.sites))
        fetched = self._context.at_both(lambda client: client.opening(study.name, self._number, a.attempt, most))
        opens, checked = self._announcement.opens, agreed.sites
        headers = [
            OpeningHeader(transcript_digest=transcript_digest, side=side, checked=checked, opens=opens) for side in Side
        ]
        own, key = self._context.site, self._context.keys.sealing
        at_a, at_b = (bodies.read_opening(fetched[header.side], header, own, key) for header in headers)
        parameters = study.parameters_in(self._announcement.purpose)
        return agreed, open_all(at_a, at_b, self._numerators(agreed), parameters, opens)

    def judged(self, agreed: AgreedSet, sites: Sequence[OpenedSite], attempt: int, facts: RequesterFacts) -> Opened:
        """Keep those that are in range, no longer than a clipped update can be, and selected by the rule."""
        owner, own = self._owner, self._context.site
        study, opens = owner.study, self._announcement.opens
        if self._announcement.purpose.plan.of_data:
            judged = judge_sum(sites, own, self._number)
        else:
            by = RoundRule(study.rule, owner.rule, owner.progress.rule_state, study.parameters)
            judged = judge(sites, facts, self._numerators(agreed), by, round=self._number, opens=opens)
        if not self._announcement.purpose.plan.summed:
            measured = judged.measured if judged.measured_anybody else judged.measured.model_copy(update=_NOBODY)
            return Opened(measured=measured, left_out=judged.failed, release_set=None)
        release = ReleaseSet(
            study_digest=owner.study_digest,
            round=self._number,
            attempt=attempt,
            agreed_set_digest=agreed.digest(),
            sites=tuple(site for site in agreed.sites if site == own or site in judged.measured.took_part),
            failed_check=judged.failed,
        )
        enough = judged.releases(self._announcement.least_contributors)
        return Opened(
            measured=judged.measured, left_out=judged.failed, release_set=owner.signed(release) if enough else None
        )

    def _numerators(self, agreed: AgreedSet) -> dict[str, int]:
        """Weights over the grid; in a ranking nobody is weighed."""
        if self._announcement.purpose is Purpose.RANKING:
            return dict.fromkeys(agreed.sites, self._owner.study.parameters_in(Purpose.RANKING).weight_grid)
        return {site: self.numerator(site) for site in agreed.sites}

    def numerator(self, site: str) -> int:
        """A site's weight over the grid. Raises: ProtocolViolation"""
        if site == self._context.site:
            return self._plan.weight_list.own_numerator
        numerator = self._plan.weight_list.numerator_of(site)
        if numerator is None:
            raise ProtocolViolation(f"round {self._number}: the servers agreed on {site!r}, which was not listed")
        return numerator


_B_FIRST = (Side.B, Side.A)
"""A ends the round as soon as it hears that tags failed."""


class Said(Frozen):
    """The one word that this requester signed about an attempt's tags."""

    go: Signed[Go] | None = None
    failed: Signed[TagsFailed] | None = None


class Wrong(Frozen):
    """The sites whose tags are wrong; ``server_lied``: a server's word does not fit the other's or this site's own."""

    sites: tuple[str, ...]
    server_lied: bool


class TagChecks:
    """The steps of one round, each taken again after a restart with the same bytes."""

    def __init__(self, owner: RequesterStudy, plan: RoundPlan) -> None:
        self._owner = owner
        self._context = owner.context
        self._announcement = plan.announcement.message
        self._seed = plan.weight_list.tag_seed or ""

    def take(self, release: Signed[ReleaseSet], a: RoundView, b: RoundView) -> Said:
        """Send the seed, read both checks, say go or that tags failed.

        Raises: UnknownResource, when a view lacks its commitment; BadSignature, AnnouncementMismatch
        """
        around = Point.BEFORE_TAGS_JUDGED, Point.AFTER_TAGS_JUDGED
        said = self._owner.journal.once(self._file(a.attempt), Said, lambda: self._judged(release, a, b), around)
        if said.go is not None:
            go = said.go
            self._context.at_both(lambda client: client.go(self._owner.study.name, go))
            self._owner.journal.reach(Point.AFTER_GO_SENT)
        elif said.failed is not None:
            self._shares(said.failed, a.attempt)
        return said

    def wrong(self, release: Signed[ReleaseSet], attempt: int) -> Wrong | None:
        """Return who failed, in an attempt that ended without a sum; None where its tags were never found wrong.

        The servers keep their shares for this: what was not fetched before a crash is asked for again.
        """
        said = self.said(attempt)
        if said.failed is None:
            return None
        shares = self._shares(said.failed, attempt)
        if len(shares) < len(Side):  # it had ended the round before it heard of this: nobody can tell
            return Wrong(sites=(), server_lied=False)
        failed, roster = said.failed.message, self._context.roster
        found = wrong_tags(failed, release.message, (shares[Side.A], shares[Side.B]), roster)
        own_is_wrong = self._context.site in found.sites  # this site knows that its own tags are right
        return Wrong(sites=() if own_is_wrong else found.sites, server_lied=found.server_lied or own_is_wrong)

    def _judged(self, release: Signed[ReleaseSet], a: RoundView, b: RoundView) -> Said:
        """The seed leaves only once both servers have committed to what they will serve."""
        owner, roster = self._owner, self._context.roster
        committed = {side: self._committed(release, side, view) for side, view in zip(Side, (a, b), strict=True)}
        shown = shown_seed(bytes.fromhex(self._seed)).hex()
        seed = TagSeed(study_digest=owner.study_digest, round=self._announcement.round, attempt=a.attempt, seed=shown)
        owner.journal.reach(Point.BEFORE_TAG_SEED_SENT)

        def checked(client: ServerClient) -> Signed[TagCheck]:
            check = client.tag_seed(owner.study.name, seed)
            owner.journal.reach(Point.AFTER_TAG_SEED_SENT)
            require_check(check, committed[client.side].message, roster)
            return check

        checks = self._context.at_both(checked)
        stated = judged(release.message, (committed[Side.A], committed[Side.B]), (checks[Side.A], checks[Side.B]))
        return Said(go=owner.signed(stated)) if isinstance(stated, Go) else Said(failed=owner.signed(stated))

    def _committed(self, release: Signed[ReleaseSet], side: Side, view: RoundView) -> Signed[OutputCommitment]:
        if view.commitment is None:
            raise UnknownResource(
                f"round {view.round}: server {side.value.upper()} shows no commitment to its half yet"
            )
        require_commitment(view.commitment, release.message, side, self._context.roster)
        return view.commitment

    def _shares(self, failed: Signed[TagsFailed], attempt: int) -> dict[Side, Signed[TagShares]]:
        """Return both servers' shares, B's first; a server that refuses them has none."""
        found: dict[Side, Signed[TagShares]] = {}
        around = Point.BEFORE_TAG_SHARES_JOURNALLED, Point.AFTER_TAG_SHARES_JOURNALLED
        for side in _B_FIRST:
            ask = partial(self._context.clients[side].tags_failed, self._owner.study.name, failed)
            try:
                kept = self._file(attempt, side)
                found[side] = self._owner.journal.once(kept, Signed[TagShares], ask, around)
            except RefusedMessage as refused:
                self._owner.problem(self._announcement.round, refused.detail)
        return found

    def said(self, attempt: int) -> Said:
        """Return what was said of an attempt's tags; nothing where nothing was."""
        return self._owner.journal.read(self._file(attempt), Said) or Said()

    def shares(self, attempt: int) -> tuple[Signed[TagShares], ...]:
        found = (self._owner.journal.read(self._file(attempt, side), Signed[TagShares]) for side in Side)
        return tuple(shares for shares in found if shares is not None)

    def _file(self, attempt: int, shares_of: Side | None = None) -> Path:
        name = "tags.json" if shares_of is None else f"tag-shares-{shares_of.value}.json"
        return self._owner.journal.attempt_folder(self._announcement.round, attempt) / name
