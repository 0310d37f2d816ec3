"""Sums whose difference is one site's update: against the memory of sums alone, and against agents that keep it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from client_agent.contributor.decisions import Decision
from client_agent.contributor.run import Contributor
from client_agent.network.held_roster import HeldRoster
from harness.adversaries import memory_attacks as memory
from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.memory_attacks import ATTACKS, FEATURES, Claim, MemoryAttack, start
from harness.adversaries.scripted.there import there
from harness.adversaries.scripted_agents import (
    GRID,
    PARTIES,
    REQUESTER,
    SITES,
    START,
    Federation,
    Round,
    study,
)
from protocol.policy.site_policy import SitePolicy
from protocol.wire.authentic import sign
from protocol.wire.messages import RoundState, RoundView, Study

_ISOLATION = "the site's memory of sums, and its demand on isolation"
_READ = 0.15
"""An update known this well is as good as read."""
_ONE_SUM = 0.4
"""What one sum alone leaves of it: 0.5, a little less where the sites' updates are not as long as each other."""
_BLURRED = frozenset({"rate 0.5"})
"""The model moves so far between its sums that nothing is read, with or without a defence."""
_FOUR, _WITHOUT_FIRST, _OTHERS = SITES[:4], SITES[1:4], SITES[4:]


class Subtraction(Attack):
    """One way to ask for sums, against what sites remember; no servers, no files."""

    party = Party.REQUESTER
    defence = _ISOLATION
    figure = "relative error of the update that is known best"
    without: Mapping[str, object] = {"harness.adversaries.memory_attacks.check_isolation": passes}

    def __init__(self, of: MemoryAttack) -> None:
        self.name = f"sums-{of.name.replace(' ', '-').replace('.', '-')}"
        self.tries = of.says
        self._of = of

    def attempt(self, folder: Path) -> Found:
        error = self._of.error(SitePolicy().least_isolation)
        return Found(error < _ONE_SUM, error)


class BetweenModels(Attack):
    """Updates of linear regressions over all examples are combined as their models are."""

    name = "sums-between-models"
    party = Party.REQUESTER
    tries = "three studies, no site in all of them, the third over a model that is a combination of the others' models"
    defence = _ISOLATION
    figure = "relative error of the first site's update"
    without: Mapping[str, object] = {"harness.adversaries.memory_attacks.check_isolation": passes}

    def attempt(self, folder: Path) -> Found:
        sites = memory.Federation(SitePolicy().least_isolation)
        near, far = start(), np.linspace(-1, 1, FEATURES)
        third, combined = 2 * far - near, np.zeros(FEATURES)
        for number, listed in enumerate(memory.PARTS[:2]):
            for model, times in ((near, -1), (far, 2)):
                total = sites.ask(listed, model, Claim(study=str(number)), told=listed)
                combined += np.nan if total is None else times * total
        last = sites.ask(memory.PARTS[2], third, Claim(study="2"), told=memory.PARTS[2])
        if last is None or np.isnan(combined).any():
            return Found(False, 1.0)
        truth = sites.update("one", third)
        found = combined - last - sites.update(memory.REQUESTER, third)
        error = float(np.linalg.norm(found - truth) / np.linalg.norm(truth))
        return Found(error < _READ, error)


Asked = Callable[[Federation], float | None]


_NOTHING_DEMANDED: Mapping[str, object] = {"client_agent.site.remembered_sums.check_isolation": passes}


class TwoSums(Attack):
    """A script of a requester against seven real agents with their folders and the default policy.

    -> the relative error of one site's update, None where sites refused what it rests on
    """

    defence = _ISOLATION
    figure = "relative error of one site's update, from the difference of two sums"

    def __init__(
        self,
        name: str,
        tries: str,
        script: Asked,
        party: Party = Party.REQUESTER,
        without: Mapping[str, object] = _NOTHING_DEMANDED,
    ) -> None:
        self.name, self.tries, self._script, self.party, self.without = name, tries, script, party, without

    def attempt(self, folder: Path) -> Found:
        with Federation(folder) as sites:
            error = self._script(sites)
        return Found(False, 1.0) if error is None else Found(error < _READ, error)


def _difference(
    sites: Federation, larger: Round, smaller: Round, victim: str = "c1", times: float = 1.0
) -> float | None:
    """How far one sum less another is from so many times the victim's update at the first model."""
    if larger.refused or smaller.refused:
        return None
    truth = sites.learners[victim].gradient(START)
    return float(np.linalg.norm((larger.sum - smaller.sum) / times - truth) / np.linalg.norm(truth))


def _serve(sites: Federation, of: Study, names: Sequence[str], model: np.ndarray, version: int) -> None:
    for site in names:
        sites.serve(of, site, model, version)


def _old_model_again(sites: Federation) -> float | None:
    of = study()
    first = sites.round(of, 1, _FOUR, version=0)
    for number in (2, 3):
        moved = START * (1 + number / 10)
        _serve(sites, of, _OTHERS, moved, number - 2)
        sites.round(of, number, _OTHERS, version=number - 2, model=moved)
    _serve(sites, of, _WITHOUT_FIRST, START, 2)
    return _difference(sites, first, sites.round(of, 4, _WITHOUT_FIRST, version=2))


def _step_too_small(sites: Federation) -> float | None:
    of, nearly = study(), (START * (1 + 1e-6)).astype(np.float32)
    first = sites.round(of, 1, _FOUR, version=0)
    _serve(sites, of, _WITHOUT_FIRST, nearly, 1)
    return _difference(sites, first, sites.round(of, 2, _WITHOUT_FIRST, version=1, model=nearly))


def _cancelled(sites: Federation) -> float | None:
    first = sites.round(study("first"), 1, _FOUR, version=0, end=None)
    return _difference(sites, first, sites.round(study("second"), 1, _WITHOUT_FIRST, version=0))


def _restarted(sites: Federation) -> float | None:
    first = sites.round(study("first"), 1, _FOUR, version=0)
    for site in _FOUR:
        sites.restart(site)
        shutil.rmtree(sites.state_dir(site) / "studies")
    return _difference(sites, first, sites.round(study("second"), 1, _WITHOUT_FIRST, version=0))


def _after_a_refusal(sites: Federation) -> float | None:
    first = sites.round(study("first"), 1, _FOUR, version=0)
    sites.round(study("second"), 1, _WITHOUT_FIRST, version=0, end=None)
    return _difference(sites, first, sites.round(study("third"), 1, _WITHOUT_FIRST, version=0))


def _another_release_set(sites: Federation) -> float | None:
    of = study()
    first = sites.round(of, 1, _FOUR, version=0, end=None)
    told = first.past.release_set.message.model_copy(update={"sites": (REQUESTER, *_WITHOUT_FIRST)})
    forged = first.past.model_copy(update={"release_set": sign(told, REQUESTER, PARTIES.keys_of(REQUESTER).signing)})
    _serve(sites, of, _WITHOUT_FIRST, START, 1)
    return _difference(sites, first, sites.round(of, 2, _WITHOUT_FIRST, version=1, previous=forged))


def _side_by_side(sites: Federation) -> float | None:
    """Both studies are over the same data, and each alone asks for nothing that is wrong."""
    for name in ("first", "second"):
        first = sites.round(study(name), 1, _FOUR, version=0, least=4)
    return _difference(sites, first, sites.round(study("second"), 2, _WITHOUT_FIRST, version=1))


def _lighter(sites: Federation) -> float | None:
    """The same sites; one weight is a quarter lower."""
    of, least = study(), GRID * 3 // 4
    first = sites.round(of, 1, _FOUR, version=0)
    second = sites.round(of, 2, _FOUR, version=1, least=4, numerators={"c1": least})
    return _difference(sites, first, second, times=1 - least / GRID)


def _joiner(sites: Federation) -> float | None:
    """It was in no sum; the requester must hand it the last release with the list."""
    of, joined = study(), (*_FOUR, "c5")
    first = sites.round(of, 1, _FOUR, version=0)
    _serve(sites, of, joined, START, 1)
    second = sites.round(of, 2, joined, version=1, least=5, previous=first.past)
    return _difference(sites, second, first, victim="c5")


def _told_by_one_server(sites: Federation) -> float | None:
    """A server on the requester's side shows sites that did not see the end another release set than was summed."""
    of = study()
    first = sites.round(of, 1, _FOUR, version=0, end=None)
    told = first.past.release_set.message.model_copy(update={"sites": (REQUESTER, *_WITHOUT_FIRST)})
    true = RoundView(
        round=1,
        attempt=1,
        state=RoundState.RELEASED,
        announcement=sign(first.past.announcement, REQUESTER, PARTIES.keys_of(REQUESTER).signing),
        agreed_set=first.past.agreed_set,
        release_set=first.past.release_set,
    )
    false = true.model_copy(update={"release_set": sign(told, REQUESTER, PARTIES.keys_of(REQUESTER).signing)})
    for site in _WITHOUT_FIRST:
        sites.agent(site, of)._settle_unseen(first.decisions[site], false, true)
    return _difference(sites, first, sites.round(study("second"), 1, _WITHOUT_FIRST, version=0))


def _renewed(sites: Federation) -> float | None:
    """Everybody but one site renews its keys between the sums, as hospitals do once a year."""
    of = study()
    first = sites.round(of, 1, _FOUR, version=0)
    sites.renew(*_WITHOUT_FIRST)
    return _difference(sites, first, sites.round(of, 2, _WITHOUT_FIRST, version=1))


def _key_of_the_day(held: HeldRoster, site: str) -> str:
    """A site is named by the key that it has now."""
    return there(held.head.party(site), site).signing_key


_SETTLE = Contributor._settle_unseen


def _believes_one(agent: Contributor, decision: Decision, view: RoundView, other: RoundView) -> None:
    """What one server shows is what was summed."""
    _SETTLE(agent, decision, view, view)


def subtractions() -> tuple[Attack, ...]:
    """Every attack of this family."""
    scripts = (
        TwoSums("agents-old-model-again", "the first model again, under a newer version's number", _old_model_again),
        TwoSums("agents-tiny-step", "a step so small that the next version is the last one", _step_too_small),
        TwoSums("agents-cancelled", "a study cancelled before its end is seen, and created again", _cancelled),
        TwoSums(
            "agents-restarted",
            "agents that restart, and lose the first of two studies",
            _restarted,
        ),
        TwoSums("agents-after-a-refusal", "a refused list left open, to blind the sites' memory", _after_a_refusal),
        TwoSums("agents-two-release-sets", "another release set shown to sites than was summed", _another_release_set),
        TwoSums("agents-second-study", "a second study over the same data, side by side with the first", _side_by_side),
        TwoSums("agents-lighter-weight", "the same sites again, one of them with a lower weight", _lighter),
        TwoSums(
            "agents-renewed-keys",
            "two sums around a day on which sites renewed their keys",
            _renewed,
            without={"client_agent.network.held_roster.HeldRoster.name_of": _key_of_the_day},
        ),
        TwoSums("agents-late-joiner", "the sums without and with a site that joins", _joiner),
        TwoSums(
            "agents-told-by-one-server",
            "another release set, shown by one server to sites that did not see the end",
            _told_by_one_server,
            Party.SERVER_AND_REQUESTER,
            {"client_agent.contributor.run.Contributor._settle_unseen": _believes_one},
        ),
        BetweenModels(),
    )
    return (*(Subtraction(of) for of in ATTACKS if of.name not in _BLURRED), *scripts)
