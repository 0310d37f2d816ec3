"""Sums whose difference is one site's update, table or patient: against what sites remember, and against agents."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.contributor.run import Contributor, shown_release
from client_agent.site.sum_memory import SumMemory
from harness.attack import memory_attacks as memory
from harness.attack.attack import Attempt, Found, passes
from harness.attack.attacked_study import relative_error
from harness.attack.memory_attacks import FEATURES, Claim, start
from harness.attack.scripted_agents import (
    GRID,
    REQUESTER,
    SITES,
    START,
    Federation,
    How,
    Round,
    announced,
    by_requester,
    study,
)
from harness.attack.signed_client import there
from protocol.errors import PolicyRefusal
from protocol.messages.control import LayerShape, Purpose, ReleaseSet, RoundState, RoundView, Signed, Study
from protocol.parameters import Needs
from protocol.policy import clauses, cohorts
from protocol.policy.cohorts import Cohort
from protocol.policy.exposure import SummedRow, SummedWeight
from protocol.policy.memory import SiteMemory, remember_contribution, remember_left_out
from protocol.policy.site_policy import SitePolicy
from protocol.rounds.evidence import PastRelease
from protocol.shared_model import seeded_model
from protocol.summary.layout import Layout, Numeric
from protocol.summary.protection import FIRST_LINE, OwnColumn, Protection, summary_questions

_READ: Final = 0.15
"""An update known this well is as good as read."""
_AT_AGENTS: Final[Mapping[str, object]] = {"client_agent.site.sum_memory.check_isolation": passes}


# --- against the memory of sums alone; no servers, no files -----------------------------------------------------------

_ONE_SUM: Final = 0.4
"""One sum alone leaves an error of 0.5, a little less where the sites' updates are not as long as each other."""
_IN_MEMORY: Final[Mapping[str, object]] = {"harness.attack.memory_attacks.check_isolation": passes}


def _subtraction(script: memory.Script, _: Path) -> Found:
    error = memory.least_error(script, SitePolicy().least_isolation)
    return Found(error < _ONE_SUM, error)


def _between_models(_: Path) -> Found:
    """Updates of linear regressions over all examples are combined as their models are."""
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
    error = relative_error(combined - last - sites.update(memory.REQUESTER, third), sites.update("one", third))
    return Found(error < _READ, error)


# --- a requester against seven real agents with their folders and the default policy ----------------------------------

_FOUR, _WITHOUT_FIRST, _OTHERS = SITES[:4], SITES[1:4], SITES[4:]
Script = Callable[[Federation], float | None]
"""-> the relative error of one site's update, None where sites refused what it rests on"""


def _two_sums(script: Script, folder: Path) -> Found:
    with Federation(folder) as sites:
        error = script(sites)
    return Found(False, 1.0) if error is None else Found(error < _READ, error)


def _difference(
    sites: Federation, larger: Round, smaller: Round, victim: str = "c1", times: float = 1.0
) -> float | None:
    """The distance of one sum less another from so many times the victim's update at the first model."""
    if larger.refused or smaller.refused:
        return None
    return relative_error((larger.sum - smaller.sum) / times, sites.learners[victim].gradient(START))


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


def _set_without_first(summed: Round) -> Signed[ReleaseSet]:
    told = summed.past.release_set.message.model_copy(update={"sites": (REQUESTER, *_WITHOUT_FIRST)})
    return by_requester(told)


def _another_release_set(sites: Federation) -> float | None:
    of = study()
    first = sites.round(of, 1, _FOUR, version=0, end=None)
    forged = first.past.model_copy(update={"release_set": _set_without_first(first)})
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
    true = RoundView(
        round=1,
        attempt=1,
        state=RoundState.RELEASED,
        announcement=by_requester(first.past.announcement),
        agreed_set=first.past.agreed_set,
        release_set=first.past.release_set,
    )
    false = true.model_copy(update={"release_set": _set_without_first(first)})
    for site in _WITHOUT_FIRST:
        shown = there(shown_release(first.decisions[site], false, true), site)
        sites.agent(site, of)._settle_unseen(shown, true)
    return _difference(sites, first, sites.round(study("second"), 1, _WITHOUT_FIRST, version=0))


def _renewed(sites: Federation) -> float | None:
    """Everybody but one site renews its keys between the sums, as hospitals do once a year."""
    of = study()
    first = sites.round(of, 1, _FOUR, version=0)
    sites.renew(*_WITHOUT_FIRST)
    return _difference(sites, first, sites.round(of, 2, _WITHOUT_FIRST, version=1))


_AT: Final = "client_agent.contributor.run.Contributor."
_SETTLE: Final = Contributor._settle_unseen


def _believes_one(agent: Contributor, shown: PastRelease, other: RoundView) -> None:
    """Take what one server shows for what was summed."""
    _SETTLE(agent, shown, other.model_copy(update={"release_set": shown.release_set}))


_AGENTS: Final[Mapping[str, tuple[Script, Mapping[str, object]]]] = {
    "agents-old-model-again": (_old_model_again, _AT_AGENTS),
    "agents-tiny-step": (_step_too_small, _AT_AGENTS),
    "agents-cancelled": (_cancelled, _AT_AGENTS),
    "agents-restarted": (_restarted, _AT_AGENTS),
    "agents-after-a-refusal": (_after_a_refusal, _AT_AGENTS),
    "agents-two-release-sets": (_another_release_set, _AT_AGENTS),
    "agents-second-study": (_side_by_side, _AT_AGENTS),
    "agents-lighter-weight": (_lighter, _AT_AGENTS),
    "agents-renewed-keys": (  # a site is named by the key that it has now
        _renewed,
        {
            "client_agent.site.identity.HeldRoster.name_of": lambda held, site: (
                there(held.head.party(site), site).signing_key
            )
        },
    ),
    "agents-late-joiner": (_joiner, _AT_AGENTS),
    "agents-told-by-one-server": (
        _told_by_one_server,
        {f"{_AT}_settle_unseen": _believes_one},
    ),
}

# --- a second study over the same data whose model has one class more, that nobody has --------------------------------
#
# The first model has many classes that nobody has already, so that one more changes little: nearly the same updates.
# The memory of one site that is asked for both sums is real.

_LABELS, _CLASSES, _PATIENTS, _SEED = 4, 30, 40, 3
_FEATURES: Final = (12, 140)
"""With 140 both updates are longer than what a site keeps whole of one."""
_ABCD: Final = "abcd"


def _layers(classes: int, features: int) -> tuple[tuple[str, int], ...]:
    return (("weight", classes * features), ("bias", classes))


def _row(name: str, sites: str, layers: tuple[tuple[str, int], ...]) -> SummedRow:
    return SummedRow(
        study_digest=name,
        round=1,
        dimension=sum(size for _, size in layers),
        weights=tuple(SummedWeight(site=site, weight=1.0) for site in sites),
        least=len(sites),
        layers=layers,
    )


class Patients:
    """Four sites' patients, of so many features."""

    def __init__(self, features: int) -> None:
        draw = np.random.default_rng(1)
        self._features = features
        self._of = {
            site: (draw.normal(size=(_PATIENTS, features)), draw.integers(0, _LABELS, _PATIENTS)) for site in _ABCD
        }

    def update(self, site: str, classes: int) -> NDArray[np.float64]:
        """The full-batch gradient of a softmax regression in its first model; a study's seed fixes that in both."""
        x, y = self._of[site]
        shapes = (LayerShape(name="weight", shape=(classes, self._features)), LayerShape(name="bias", shape=(classes,)))
        model = seeded_model(shapes, _SEED).astype(np.float64)
        cut = classes * self._features
        scores = np.exp(x @ model[:cut].reshape(classes, self._features).T + model[cut:])
        missed = (scores / scores.sum(axis=1, keepdims=True) - np.eye(classes)[y]) / len(y)
        return np.concatenate([(missed.T @ x).ravel(), missed.sum(axis=0)])

    def error(self) -> float:
        """The error of site a's update, from the sums of all with one model and of all but a with the other."""
        common = _CLASSES * self._features
        first = np.sum([self.update(site, _CLASSES)[:common] for site in _ABCD], axis=0)
        second = np.sum([self.update(site, _CLASSES + 1)[:common] for site in _ABCD[1:]], axis=0)
        return relative_error(first - second, self.update("a", _CLASSES)[:common])

    def agreed_to(self, folder: Path) -> bool:
        kept = SumMemory(folder, lambda: bytes(32))
        for name, sites, classes in (("first", _ABCD, _CLASSES), ("second", _ABCD[1:], _CLASSES + 1)):
            layers = _layers(classes, self._features)
            update = kept.kept(self.update("b", classes), layers)
            try:
                kept.agree(_row(name, sites, layers), update, SitePolicy(), 0)
            except PolicyRefusal:
                return False
        return True


def _one_class_more(folder: Path) -> Found:
    """The figure is the better of two studies', with few and with many features."""
    error = 1.0
    for features in _FEATURES:
        patients, own = Patients(features), folder / str(features)
        own.mkdir()
        if patients.agreed_to(own):
            error = min(error, patients.error())
    return Found(error < 0.2, error)


# --- sums of data as they are: over nearly the same sites, or a little differently; numbers had twice -----------------
#
# Class counts and summaries are exact, so the difference of two of them is one site's table, or a patient.

_TABLES: Final = {site: np.random.default_rng(place).integers(0, 400, 40) for place, site in enumerate(SITES)}
_FIVE: Final = SITES[:5]
_ROUNDS: Final = 10


def _cohort(of: str, listed: tuple[str, ...], **more: object) -> Cohort:
    asked = Cohort(study_digest=of * 64, round=1, listed=listed, least=len(listed), requester=REQUESTER)
    return asked.model_copy(update=more)


def _tables(first: tuple[str, ...], *subtracted: tuple[str, ...], victim: str) -> Found:
    """Sums of tables, of which the first less the others is the victim's; the figure is how many entries are read.

    A sum is opened when every contributor agrees to it by its own memory.
    """
    known: dict[str, list[Cohort]] = {site: [] for site in SITES}
    opened: list[np.ndarray] = []
    for of, listed in zip("abc", (first, *subtracted), strict=False):
        asked = _cohort(of, listed)
        try:
            for site in listed:
                cohorts.check_cohort(asked, known[site], 0, SitePolicy().most_cohorts)
        except PolicyRefusal:
            continue
        for site in listed:
            known[site].append(asked.model_copy(update={"released": listed}))
        opened.append(np.sum([_TABLES[site] for site in listed], axis=0))
    if len(opened) <= len(subtracted):
        return Found(False, 0)
    read = int(np.count_nonzero(opened[0] - np.sum(opened[1:], axis=0) == _TABLES[victim]))
    return Found(read > 0, read)


def _two_ranges(_: Path) -> Found:
    """One column asked for twice, by ranges that differ by two years: the clipped sums count who lies beyond."""
    ages = np.random.default_rng(5).integers(40, 99, 200).astype(np.float64)
    protection, key = Protection(key=bytes(32), rounded_to=5, least_examples=10), "age"
    known: list[Cohort] = []
    sums: list[float] = []
    for number, high in enumerate((98.0, 96.0), 1):
        layout = Layout((Numeric(key, 0.0, high),), most_rows=400)
        own = summary_questions(layout, (OwnColumn(key, FIRST_LINE),), (ages,), protection)
        asked = _cohort(str(number), _FIVE, questions=own)
        try:
            cohorts.check_questions(asked, known, 1)
        except PolicyRefusal:
            return Found(False, 0)
        known.append(asked)
        sums.append(float(np.minimum(ages, high).sum()))
    beyond = int(np.count_nonzero(ages > 96) + np.count_nonzero(ages > 97))
    return Found(sums[0] - sums[1] == beyond, beyond)


def _announced_again(clause: str, most: int, how: How, _: Path) -> Found:
    """A round that may happen so often and no more, announced again: with another query it is another number."""
    known, took_part = SiteMemory(), 0
    for number in range(1, _ROUNDS + 1):
        weights, told = announced(study(), number, _FIVE, how)
        try:
            getattr(clauses, clause)(told, known)
        except PolicyRefusal:
            continue
        known = remember_contribution(known, told, weights)
        took_part += 1
    return Found(took_part > most, took_part)


def _again(clause: str, most: int, how: How) -> Attempt:
    return Attempt(partial(_announced_again, clause, most, how), {f"protocol.policy.clauses.{clause}": passes})


def _left_out_again(_folder: Path) -> Found:
    """A site is listed in every round for its distance, and left out of every sum once that is seen."""
    known, victim, seen = SiteMemory(), _FIVE[0], 0
    for number in range(1, _ROUNDS + 1):
        told = announced(study(), number, _FIVE, How(version=number, opens=Needs.DISTANCES))[1]
        try:
            clauses.check_left_out_twice(told, known)
        except PolicyRefusal:
            break
        seen += 1
        known = remember_left_out(known, number, (REQUESTER, *_FIVE), (REQUESTER, *_FIVE[1:]), (), own=victim)
    return Found(seen > clauses.TIMES_LEFT_OUT, seen)


_ANY_COHORT: Final[Mapping[str, object]] = {"protocol.policy.cohorts.check_cohort": passes}
ATTEMPTS: Final = {
    **{f"sums-{name}": Attempt(partial(_subtraction, script), _IN_MEMORY) for name, script in memory.ATTACKS.items()},
    "sums-between-models": Attempt(_between_models, _IN_MEMORY),
    **{name: Attempt(partial(_two_sums, script), without) for name, (script, without) in _AGENTS.items()},
    "sums-one-class-more": Attempt(_one_class_more, _AT_AGENTS),
    "summary-without-one-site": Attempt(lambda _: _tables(_FIVE, SITES[:4], victim=SITES[4]), _ANY_COHORT),
    # Every two differ in four sites or in all; what they show together, no site sees: none but the last is in all.
    "summary-by-three-sums": Attempt(lambda _: _tables(SITES, SITES[:3], SITES[3:6], victim=SITES[6]), _ANY_COHORT),
    "summary-of-two-ranges": Attempt(_two_ranges, {"protocol.policy.cohorts.check_questions": passes}),
    "counts-twice": _again("check_once", 1, How(version=0, purpose=Purpose.COUNTS)),
    "ranking-twice": _again("check_once", 1, How(version=0, purpose=Purpose.RANKING)),
    "measured-a-third-time": _again("check_measured_twice", 2, How(version=0, opens=Needs.DISTANCES)),
    "release-without-one-site-for-ever": Attempt(
        _left_out_again, {"protocol.policy.clauses.check_left_out_twice": passes}
    ),
}
