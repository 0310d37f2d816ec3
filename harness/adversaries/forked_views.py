"""A server that shows a site something else than the other server does, or speaks for it.

Seven real agents with their folders and the default policy; what they are shown comes from a script.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from client_agent.study.evidence import require_skip
from harness.adversaries.attack import Attempt, Found, passes
from harness.adversaries.forgeries import equivocating_announcement
from harness.adversaries.refused_messages import unsigned
from harness.adversaries.scripted_agents import PARTIES, REQUESTER, ROSTER, SITES, Federation, announced, study
from protocol.errors import MoietyError
from protocol.messages.control import (
    Announcement,
    ContributedRound,
    Message,
    OutcomeCause,
    RoundState,
    RoundView,
    Signed,
    WeightList,
    countersign,
    sign,
)
from protocol.rounds.evidence import check_release
from protocol.rounds.side_a import outcome_of
from protocol.rounds.states import RoundKey
from protocol.sharing import Side

M = TypeVar("M", bound=Message)
_VICTIM: Final = SITES[0]
_LISTED: Final = SITES[:4]
_A, _B = (ROSTER.operator(side).name for side in Side)
Script = Callable[[Federation], bool]


def _shown(script: Script, folder: Path) -> Found:
    """One thing that is shown to a site; it succeeds when the site acts on it."""
    with Federation(folder) as sites:
        try:
            acted = script(sites)
        except MoietyError as refused:
            return Found(False, 0, refused.detail)
    return Found(acted, float(acted))


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
    """One honest list and its announcement."""
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
    return require_skip(skip, ROSTER, key.study, 1).outcome is RoundState.SKIPPED


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
ATTEMPTS: Final = {
    "fork-two-announcements": Attempt(partial(_shown, _forked), _ANNOUNCED),
    "fork-in-the-others-name": Attempt(
        partial(_shown, _for_the_other), {"client_agent.contributor.decisions.require_signatures": unsigned}
    ),
    "fork-that-keeps-a-site-out": Attempt(partial(_shown, _kept_out), _ANNOUNCED),
    "fork-that-skips-alone": Attempt(
        partial(_shown, _skipped_alone), {"client_agent.study.evidence.require_signatures": unsigned}
    ),
    "fork-of-other-contributors": Attempt(
        partial(_shown, _other_contributors), {"protocol.rounds.evidence.require_signatures": unsigned}
    ),
    "server-invents-receipts": Attempt(partial(_shown, _receipts)),
}
