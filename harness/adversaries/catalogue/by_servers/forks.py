"""A server that shows a site something else than the other server does, or speaks for it.

Seven real agents with their folders and the default policy; what they are shown comes from a script.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from client_agent.contributor.decisions import Decision
from client_agent.study.evidence import require_skip
from harness.adversaries import requester as malicious
from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.scripted_agents import (
    PARTIES,
    REQUESTER,
    ROSTER,
    SITES,
    Federation,
    announced,
    study,
)
from protocol.errors import MoietyError
from protocol.evidence import check_release
from protocol.rounds.side_a import outcome_of
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from protocol.wire.authentic import countersign, sign
from protocol.wire.messages import (
    Announcement,
    ContributedRound,
    Message,
    OutcomeCause,
    RoundState,
    RoundView,
    Signed,
    WeightList,
)

_VICTIM: Final = SITES[0]
_SITES: Final = SITES[:4]
_BOTH: Final = "both servers' signatures under one and the same announcement, set, skip and sum"
_A, _B = (ROSTER.operator(side).name for side in Side)


def _said(told: Announcement, *operators: tuple[str, str]) -> RoundView:
    """An announcement that each first operator signs, in the name of the second."""
    signed = sign(told, REQUESTER, PARTIES.keys_of(REQUESTER).signing)
    for signer, name in operators:
        signed = countersign(signed, name, PARTIES.keys_of(signer).signing)
    return RoundView(round=told.round, attempt=1, state=RoundState.ANNOUNCED, announcement=signed)


def _list() -> tuple[WeightList, Announcement]:
    """One honest list and its announcement."""
    return announced(study(), 1, _SITES, {"version": 0})


class Shown(Attack):
    """One thing that is shown to a site; it succeeds when the site acts on it."""

    party = Party.SERVER
    figure = "sites that acted on what one server alone said"

    def __init__(
        self,
        name: str,
        tries: str,
        defence: str,
        script: Callable[[Federation], bool],
        without: Mapping[str, object],
        *,
        promised: bool = True,
    ) -> None:
        self.name, self.tries, self.defence, self._script = name, tries, defence, script
        self.without, self.promised = without, promised

    def attempt(self, folder: Path) -> Found:
        with Federation(folder) as sites:
            try:
                acted = self._script(sites)
            except MoietyError as refused:
                return Found(False, 0, refused.detail)
        return Found(acted, float(acted))


def _decided(sites: Federation, weights: WeightList, a: RoundView, b: RoundView) -> Decision:
    """What the victim makes of it."""
    return sites.shown(study(), _VICTIM, weights, (a, b))


def _forked(sites: Federation) -> bool:
    weights, told = _list()
    shown, other = malicious.equivocating_announcement(told)
    return _decided(sites, weights, _said(shown, (_A, _A)), _said(other, (_B, _B))).accepted


def _for_the_other(sites: Federation) -> bool:
    """A signs in its own name and, with its own key, in B's."""
    weights, told = _list()
    return _decided(sites, weights, _said(told, (_A, _A)), _said(told, (_A, _B))).accepted


def _kept_out(sites: Federation) -> bool:
    """A alone shows a list without the victim: a site that believed it would stay away without a word."""
    weights, told = _list()
    without = told.model_copy(update={"listed": SITES[1:4]})
    decided = _decided(sites, weights, _said(without, (_A, _A)), _said(told, (_B, _B)))
    return not decided.accepted and not decided.listed


def _skipped_alone(sites: Federation) -> bool:
    """A's word alone that the round whose sum was opened was skipped: the site would allow another sum."""
    key = RoundKey(study().digest(), 1, 1)
    skip = outcome_of(key, RoundState.SKIPPED, OutcomeCause.NOT_AGREED_IN_TIME)
    signed = countersign(sign(skip, _A, PARTIES.keys_of(_A).signing), _B, PARTIES.keys_of(_A).signing)
    return require_skip(signed, ROSTER, key.study, 1).outcome is RoundState.SKIPPED


def _other_contributors(sites: Federation) -> bool:
    """A tells a site that was away that others were in the sum, under a set that B never signed."""
    of = study()
    past = sites.round(of, 1, _SITES, version=0, end=None).past
    agreed = past.agreed_set.message
    fewer = agreed.model_copy(update={"contributions": agreed.contributions[:-1]})
    forged = countersign(sign(fewer, _A, PARTIES.keys_of(_A).signing), _B, PARTIES.keys_of(_A).signing)
    release = past.release_set.message.model_copy(
        update={"agreed_set_digest": fewer.digest(), "sites": tuple(one.site for one in fewer.contributions)}
    )
    told = past.model_copy(
        update={"agreed_set": forged, "release_set": sign(release, REQUESTER, PARTIES.keys_of(REQUESTER).signing)}
    )
    check_release(told, ROSTER, of.digest())
    return True


def _receipts(sites: Federation) -> bool:
    """A names receipts of rounds that never were: the site takes its own memory for lost."""
    made_up = ContributedRound(study="elsewhere", study_digest="ab" * 32, round=1, attempt=1, body_digest="cd" * 32)
    sites.relays[_VICTIM][Side.A].receipts = (made_up,)
    made = sites.round(study(), 1, _SITES, version=0)
    return _VICTIM in made.refused


def _unsigned(signed: Signed[Message], *_: object) -> Message:
    return signed.message


_ANNOUNCED: Final = {"client_agent.contributor.decisions.Decisions._check_announced": passes}


def _fork_two_announcements() -> Shown:
    return Shown(
        "fork-two-announcements",
        "shows a site an announcement that the other server never saw, with another list",
        _BOTH,
        _forked,
        _ANNOUNCED,
    )


def _fork_in_the_others_name() -> Shown:
    return Shown(
        "fork-in-the-others-name",
        "signs in the other server's name, with its own key",
        _BOTH,
        _for_the_other,
        {"client_agent.contributor.decisions.require_signatures": _unsigned},
    )


def _fork_that_keeps_a_site_out() -> Shown:
    return Shown(
        "fork-that-keeps-a-site-out",
        "shows one site a round that does not list it, so that it stays away without a word",
        _BOTH,
        _kept_out,
        _ANNOUNCED,
    )


def _fork_that_skips_alone() -> Shown:
    return Shown(
        "fork-that-skips-alone",
        "says alone that a round was skipped whose sum was opened, so that a site allows the same sites but one",
        _BOTH,
        _skipped_alone,
        {"client_agent.study.evidence.require_signatures": _unsigned},
    )


def _fork_of_other_contributors() -> Shown:
    return Shown(
        "fork-of-other-contributors",
        "tells a site that was away of a sum over others than the servers agreed on",
        _BOTH,
        _other_contributors,
        {"protocol.evidence.require_signatures": _unsigned},
    )


def _server_invents_receipts() -> Shown:
    return Shown(
        "server-invents-receipts",
        "names receipts of rounds that never were, so that a site takes its memory for lost and stays away",
        "none: a server can keep a site from contributing anyway, and the site says which rounds it was told of",
        _receipts,
        {},
        promised=False,
    )


def forked_views() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return (
        _fork_two_announcements(),
        _fork_in_the_others_name(),
        _fork_that_keeps_a_site_out(),
        _fork_that_skips_alone(),
        _fork_of_other_contributors(),
        _server_invents_receipts(),
    )
