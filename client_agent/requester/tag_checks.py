"""The requester between its release set and the sum, in a round with tags (docs/protocol.md 15).

Both servers fix what they will serve; then they get the seed and say by how much their half's tags are off. Zero in
all: go. Otherwise nothing is served, and both servers' shares of single sites' errors say whose tags are wrong. Of an
attempt one word is signed, journalled before it is sent, and sent again as it is.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from client_agent.net.server_client import ServerClient
from client_agent.requester.state import RoundPlan
from client_agent.requester.study import RequesterStudy
from client_agent.site.failpoints import Point
from host.frozen import Frozen
from protocol.errors import RefusedMessage, UnknownResource
from protocol.messages.control import (
    Go,
    OutputCommitment,
    ReleaseSet,
    RoundView,
    Signed,
    TagCheck,
    TagSeed,
    TagsFailed,
    TagShares,
)
from protocol.sharing import Side
from protocol.tags import judged, require_check, require_commitment, shown_seed, wrong_tags

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
