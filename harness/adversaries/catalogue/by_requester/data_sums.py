"""Sums of data as they are, asked for twice: over nearly the same sites, or a little differently; numbers had twice.

Class counts and summaries are exact, so the difference of two of them is one site's table, or a patient. A requester
against the memory that every site keeps; no servers, no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.scripted_agents import REQUESTER, SITES, How, announced, study
from protocol.errors import PolicyRefusal
from protocol.parameters import Needs
from protocol.policy import clauses, cohorts, questions
from protocol.policy.cohorts import Cohort
from protocol.policy.memory import SiteMemory, remember_contribution, remember_left_out
from protocol.policy.site_policy import SitePolicy
from protocol.summary.layout import Layout, Numeric
from protocol.summary.protect import Protection
from protocol.summary.question import FIRST_LINE, OwnColumn, summary_questions
from protocol.wire.messages import Purpose

_FIVE, _FOUR = SITES[:5], SITES[:4]
_TABLES: Final = {site: np.random.default_rng(place).integers(0, 400, 40) for place, site in enumerate(SITES)}
_ROUNDS: Final = 10


def _summed(cohorts_asked: Sequence[Cohort]) -> list[np.ndarray]:
    """The tables that were opened: a sum is, when every contributor agrees to it by its own memory."""
    memory: dict[str, list[Cohort]] = {site: [] for site in SITES}
    opened = []
    for asked in cohorts_asked:
        try:
            for site in asked.listed:
                cohorts.check_cohort(asked, memory[site], 0, SitePolicy().most_cohorts)
        except PolicyRefusal:
            continue
        for site in asked.listed:
            memory[site].append(asked.model_copy(update={"released": asked.listed}))
        opened.append(np.sum([_TABLES[site] for site in asked.listed], axis=0))
    return opened


class NearlyTheSameSites(Attack):
    """Two table ones, the second without one site."""

    name = "summary-without-one-site"
    party = Party.REQUESTER
    tries = "asks for a summary of five sites and then of four of them"
    defence = "sums of a site's data are over the same sites each time, in all studies together"
    figure = "of 40 entries of the fifth site's table read exactly"
    without: Mapping[str, object] = {"protocol.policy.cohorts.check_cohort": passes}

    def attempt(self, folder: Path) -> Found:
        asked = [
            Cohort(study_digest=of * 64, round=1, listed=listed, least=len(listed), requester=REQUESTER)
            for of, listed in (("a", _FIVE), ("b", _FOUR))
        ]
        opened = _summed(asked)
        if len(opened) < 2:
            return Found(False, 0)
        read = int(np.count_nonzero(opened[0] - opened[1] == _TABLES[_FIVE[-1]]))
        return Found(read > 0, read)


class ThreeSums(Attack):
    """Every two differ in four sites or in all; what they show together, no site sees: none but the last is in all."""

    name = "summary-by-three-sums"
    party = Party.REQUESTER
    tries = "asks for a summary of seven sites, of three of them, and of three others"
    defence = "sums of a site's data are over the same sites each time, in all studies together"
    figure = "of 40 entries of the seventh site's table read exactly"
    without: Mapping[str, object] = {"protocol.policy.cohorts.check_cohort": passes}

    def attempt(self, folder: Path) -> Found:
        asked = [
            Cohort(study_digest=of * 64, round=1, listed=listed, least=len(listed), requester=REQUESTER)
            for of, listed in (("a", SITES), ("b", SITES[:3]), ("c", SITES[3:6]))
        ]
        opened = _summed(asked)
        if len(opened) < len(asked):
            return Found(False, 0)
        read = int(np.count_nonzero(opened[0] - opened[1] - opened[2] == _TABLES[SITES[6]]))
        return Found(read > 0, read)


class TwoRanges(Attack):
    """One column asked for twice, by ranges that differ by two years: the clipped sums count who lies beyond."""

    name = "summary-of-two-ranges"
    party = Party.REQUESTER
    tries = "asks for the mean age within 0 to 98 and then within 0 to 96, whose difference counts the patients beyond"
    defence = "each column answers one question for ever, in all studies"
    figure = "patients older than the range counted exactly"
    without: Mapping[str, object] = {"protocol.policy.questions.check_questions": passes}

    def attempt(self, folder: Path) -> Found:
        ages = np.random.default_rng(5).integers(40, 99, 200).astype(np.float64)
        protection, key = Protection(key=bytes(32), rounded_to=5, least_examples=10), "age"
        known: list[Cohort] = []
        sums: list[float] = []
        for number, high in enumerate((98.0, 96.0), 1):
            layout = Layout((Numeric(key, 0.0, high),), most_rows=400)
            asked = Cohort(
                study_digest=str(number) * 64,
                round=1,
                listed=_FIVE,
                least=5,
                requester=REQUESTER,
                questions=summary_questions(layout, (OwnColumn(key, FIRST_LINE),), (ages,), protection),
            )
            try:
                questions.check_questions(asked, known, 1)
            except PolicyRefusal:
                return Found(False, 0)
            known.append(asked)
            sums.append(float(np.minimum(ages, high).sum()))
        beyond = int(np.count_nonzero(ages > 96) + np.count_nonzero(ages > 97))
        return Found(sums[0] - sums[1] == beyond, beyond)


class Again(Attack):
    """A round that may happen so often and no more, announced again: with another query it is another number."""

    party = Party.REQUESTER
    figure = "such rounds that a site took part in"

    def __init__(self, name: str, tries: str, defence: str, clause: str, most: int, how: How) -> None:
        self.name, self.tries, self.defence, self._clause = name, tries, defence, clause
        self._most, self._how = most, how
        self.without: Mapping[str, object] = {f"protocol.policy.clauses.{clause}": passes}

    def attempt(self, folder: Path) -> Found:
        memory, took_part = SiteMemory(), 0
        for number in range(1, _ROUNDS + 1):
            weights, told = announced(study(), number, _FIVE, self._how)
            try:
                getattr(clauses, self._clause)(told, memory)
            except PolicyRefusal:
                continue
            memory = remember_contribution(memory, told, weights)
            took_part += 1
        return Found(took_part > self._most, took_part)


class LeftOutAgain(Attack):
    """A site is listed in every round for its distance, and left out of every sum once that is seen."""

    name = "release-without-one-site-for-ever"
    party = Party.REQUESTER
    tries = "lists a site in every round, sees its distance, and releases every sum without it"
    defence = "a site that was left out of two sums without a failed check is not listed again"
    figure = "distances of a site that is in no sum"
    without: Mapping[str, object] = {"protocol.policy.clauses.check_left_out_twice": passes}

    def attempt(self, folder: Path) -> Found:
        memory, victim, seen = SiteMemory(), _FIVE[0], 0
        for number in range(1, _ROUNDS + 1):
            how = How(version=number, opens=Needs.DISTANCES)
            _, told = announced(study(), number, _FIVE, how)
            try:
                clauses.check_left_out_twice(told, memory)
            except PolicyRefusal:
                break
            seen += 1
            memory = remember_left_out(memory, number, (REQUESTER, *_FIVE), (REQUESTER, *_FIVE[1:]), (), own=victim)
        return Found(seen > clauses.TIMES_LEFT_OUT, seen)


def sums_of_data() -> tuple[Attack, ...]:
    """Every attack of this family."""
    once = "the memory of every site: once per study, unless both servers signed that it was skipped"
    return (
        NearlyTheSameSites(),
        ThreeSums(),
        TwoRanges(),
        Again(
            "counts-twice",
            "asks for class counts again in a study, over whom it likes",
            once,
            "check_once",
            1,
            How(version=0, purpose=Purpose.COUNTS),
        ),
        Again(
            "ranking-twice",
            "ranks the sites again in a study, with another query",
            once,
            "check_once",
            1,
            How(version=0, purpose=Purpose.RANKING),
        ),
        Again(
            "measured-a-third-time",
            "has more than two rounds over one model opened, each with another query",
            "two measured rounds per model, in the memory of every site",
            "check_measured_twice",
            2,
            How(version=0, opens=Needs.DISTANCES),
        ),
        LeftOutAgain(),
    )
