"""Learners of sites in memory: torch where learning is the point, else a light one without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import numpy as np

from client_agent.learning.data import Examples, LocalData
from client_agent.learning.learner import Learner, Vector
from client_agent.learning.ridge import JudgingForm, Matrix, judging_form
from client_agent.learning.scores import FinalScores, Score
from client_agent.learning.study_file import Finished
from client_agent.learning.update_noise import UpdateNoise
from client_agent.settings import AgentSettings, with_device
from client_agent.site.context import site_learner
from client_agent.site.journal import StudyJournal, finish_table
from harness.engine.parties import Parties
from harness.federation.processes import SiteSpec
from protocol.messages.control import LayerShape, ModelSpec, RuleName, RuleSpec, Study, TrainingSpec
from protocol.parameters import StudyParameters
from protocol.policy.site_policy import SitePolicy

_GRID = 256.0


Learners = Callable[[AgentSettings, Study, int], Learner]


class LightLearner:
    """Models are the same bits in every run: every site pulls the model towards its own point.

    Steps are multiples of 1/256, below the clip norm. They lie on the fixed-point grid, so that rounding draws nothing.
    ``place`` is what tells sites apart.
    """

    def __init__(self, study: Study, place: int) -> None:
        self._place = place
        self._dimension = study.model_dimension
        self._inputs = study.model.inputs[0]
        self._rate = np.float32(study.training.server_learning_rate)
        drawn = np.random.default_rng(place).normal(size=self._dimension)
        self._point = drawn / np.sqrt(self._dimension)

    def prepare(self) -> None:
        """Nothing to load."""

    def update(self, model: Vector, round_number: int) -> Vector:
        steps: Vector = (np.round((model - self._point) * _GRID) / _GRID).astype(np.float32)
        return steps

    def apply(self, model: Vector, aggregate: Vector) -> Vector:
        return np.subtract(model, np.multiply(self._rate, aggregate, dtype=np.float32), dtype=np.float32)

    def probe(self, model: Vector) -> Vector:
        return -self.update(model, 0)

    def update_noise(self, model: Vector, round_number: int) -> UpdateNoise:
        return UpdateNoise(variance=0.5, error=0.1)

    def sample_count(self) -> int:
        return sum(class_counts(self._place))

    def class_counts(self) -> tuple[int, ...]:
        return class_counts(self._place)

    def ridge(self, penalty: float) -> Matrix:
        """One per site, whose vector is no longer than a ranking's default clip norm."""
        return np.random.default_rng(self._place).normal(size=(self._inputs + 1, 2))

    def validation_loss(self, model: Vector) -> float | None:
        return None

    def judging_form(self) -> JudgingForm:
        drawn = np.random.default_rng(7).normal(size=(9, self._inputs)).astype(np.float32)
        return judging_form(Examples(drawn, np.arange(9) % 2), None, 2)

    def scores(self, model: Vector) -> tuple[Score, ...]:
        return ()

    def final_scores(self, model: Vector, samples: int) -> FinalScores | None:
        return None

    def finish(self, model: Vector) -> Finished:
        """Half of the way to the site's own point."""
        return Finished((model - self.update(model, 0) / 2).astype(np.float32), 1.0, self.sample_count(), 5)


def class_counts(place: int) -> tuple[int, int]:
    """Return the examples of each class that the site at that place claims."""
    return 20 + 5 * place, 30


def light_learner(settings: AgentSettings, study: Study, seed: int) -> LightLearner:
    """The site's place is the number in its name: 0 for the requester, 1 for c1."""
    digits = "".join(letter for letter in settings.site if letter.isdigit())
    return LightLearner(study, int(digits or "0"))


class Odd:
    """A learner that is like another one until a subclass changes what it does."""

    def __init__(self, inner: Learner) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # as the other one's
        return getattr(self._inner, name)

    def update(self, model: Vector, round_number: int) -> Vector:
        return self._inner.update(model, round_number)

    def validation_loss(self, model: Vector) -> float | None:
        return None


def torch_learner(settings: AgentSettings, study: Study, seed: int) -> Learner:
    """The real one, on the data of the site's settings."""
    journal = StudyJournal(settings.state_dir, study.name)
    learner = site_learner(study, with_device(settings, "cpu"), seed, journal.folder)
    finish = finish_table(journal)
    return learner if finish is None else learner.hold_out(finish)


def with_odd(odd: Mapping[str, type[Odd]], learner: Learners = light_learner) -> Learners:
    """As ``learner``; at these sites odd ones. What is given back can go to another process."""
    return partial(_odd_or_not, odd, learner)


def _odd_or_not(
    odd: Mapping[str, type[Odd]], learner: Learners, settings: AgentSettings, study: Study, seed: int
) -> Learner:
    inner = learner(settings, study, seed)
    return cast(Learner, odd[settings.site](inner)) if settings.site in odd else inner


EROSION: Final = RuleSpec(name=RuleName.WEIGHT_EROSION, distance_penalty=0.02, size_penalty=0.1)


def light_sites(names: Sequence[str], policy: SitePolicy | None = None) -> tuple[SiteSpec, ...]:
    """Sites without data."""
    nothing = Examples(np.zeros((1, 1), dtype=np.float32), np.zeros(1, dtype=np.int64))
    return tuple(SiteSpec(n, LocalData(nothing, nothing), policy or SitePolicy(least_isolation=0.0)) for n in names)


def light_study(parties: Parties, name: str, rule: RuleSpec, *, rounds: int = 2, dimension: int = 12) -> Study:
    """Nobody may be missing from a sum."""
    roster = parties.roster.message
    return Study(
        name=name,
        roster_digest=roster.digest(),
        parameters=StudyParameters(dimension=dimension, clip_norm=4.0, least_contributors=len(roster.contributors)),
        rule=rule,
        model=ModelSpec(kind="linear", inputs=(2,), layers=(LayerShape(name="w", shape=(dimension,)),)),
        training=TrainingSpec(server_learning_rate=0.5),
        rounds=rounds,
        round_deadline_s=60.0,
        seed=1,
    )
