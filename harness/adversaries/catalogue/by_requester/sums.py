"""Sums whose difference is one site's update: against the memory of sums alone, and against agents that keep it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.memory_attacks import ATTACKS, MemoryAttack
from harness.adversaries.scripted.requester import PARTIES, REQUESTER, SITES, START, Federation, Round, study
from protocol.policy.site_policy import SitePolicy
from protocol.wire.authentic import sign
from protocol.wire.messages import Study

_ISOLATION = "the site's memory of sums, and its demand on isolation"
_READ = 0.15
"""An update known this well is as good as read; one sum alone leaves 0.4 to 0.5 of it."""
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
        return Found(error < _READ, error)


Asked = Callable[[Federation], tuple[Round, Round]]


class TwoSums(Attack):
    """A script of a requester against seven real agents with their folders and the default policy."""

    party = Party.REQUESTER
    defence = _ISOLATION
    figure = "relative error of the first site's update, from the difference of two sums"
    without: Mapping[str, object] = {"client_agent.site.remembered_sums.check_isolation": passes}

    def __init__(self, name: str, tries: str, script: Asked) -> None:
        self.name, self.tries, self._script = name, tries, script

    def attempt(self, folder: Path) -> Found:
        with Federation(folder) as sites:
            first, second = self._script(sites)
            truth = sites.learners["c1"].gradient(START)
        if second.refused:
            return Found(False, 1.0)
        error = float(np.linalg.norm(first.sum - second.sum - truth) / np.linalg.norm(truth))
        return Found(error < _READ, error)


def _serve(sites: Federation, of: Study, names: Sequence[str], model: np.ndarray, version: int) -> None:
    for site in names:
        sites.serve(of, site, model, version)


def _old_model_again(sites: Federation) -> tuple[Round, Round]:
    of = study()
    first = sites.round(of, 1, _FOUR, version=0)
    for number in (2, 3):
        moved = START * (1 + number / 10)
        _serve(sites, of, _OTHERS, moved, number - 2)
        sites.round(of, number, _OTHERS, version=number - 2, model=moved)
    _serve(sites, of, _WITHOUT_FIRST, START, 2)
    return first, sites.round(of, 4, _WITHOUT_FIRST, version=2)


def _step_too_small(sites: Federation) -> tuple[Round, Round]:
    of, nearly = study(), (START * (1 + 1e-6)).astype(np.float32)
    first = sites.round(of, 1, _FOUR, version=0)
    _serve(sites, of, _WITHOUT_FIRST, nearly, 1)
    return first, sites.round(of, 2, _WITHOUT_FIRST, version=1, model=nearly)


def _cancelled(sites: Federation) -> tuple[Round, Round]:
    first = sites.round(study("first"), 1, _FOUR, version=0, end=None)
    return first, sites.round(study("second"), 1, _WITHOUT_FIRST, version=0)


def _restarted(sites: Federation) -> tuple[Round, Round]:
    first = sites.round(study("first"), 1, _FOUR, version=0)
    for site in _FOUR:
        sites.restart(site)
    return first, sites.round(study("second"), 1, _WITHOUT_FIRST, version=0)


def _after_a_refusal(sites: Federation) -> tuple[Round, Round]:
    first = sites.round(study("first"), 1, _FOUR, version=0)
    sites.round(study("second"), 1, _WITHOUT_FIRST, version=0, end=None)
    return first, sites.round(study("third"), 1, _WITHOUT_FIRST, version=0)


def _another_release_set(sites: Federation) -> tuple[Round, Round]:
    of = study()
    first = sites.round(of, 1, _FOUR, version=0, end=None)
    told = first.past.release_set.message.model_copy(update={"sites": (REQUESTER, *_WITHOUT_FIRST)})
    forged = first.past.model_copy(update={"release_set": sign(told, REQUESTER, PARTIES.keys_of(REQUESTER).signing)})
    _serve(sites, of, _WITHOUT_FIRST, START, 1)
    return first, sites.round(of, 2, _WITHOUT_FIRST, version=1, previous=forged)


def subtractions() -> tuple[Attack, ...]:
    """Every attack of this family."""
    scripts = (
        TwoSums("agents-old-model-again", "the first model again, under a newer version's number", _old_model_again),
        TwoSums("agents-tiny-step", "a step so small that the next version is the last one", _step_too_small),
        TwoSums("agents-cancelled", "a study cancelled before its end is seen, and created again", _cancelled),
        TwoSums("agents-restarted", "agents that restart between two studies", _restarted),
        TwoSums("agents-after-a-refusal", "a refused list left open, to blind the sites' memory", _after_a_refusal),
        TwoSums("agents-two-release-sets", "another release set shown to sites than was summed", _another_release_set),
    )
    return (*(Subtraction(of) for of in ATTACKS if of.name not in _BLURRED), *scripts)
