"""Models of the requester's own making, on which single records can be read out of an honest sum.

Five hospitals of the breast cancer data set, of which four are summed; the model is an MLP with trap weights, a first
layer whose rows fire for one record each (Boenisch et al. 2023). For a row that only one record activates, among all
sites of a sum, the sum's gradient by the row is a multiple of that record, and the gradient by the row's bias is that
multiple: their quotient is the record, however many sites were summed and whatever they weigh. The figure is how many
of their 365 records the requester holds within a tenth of a standard deviation in every feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from client_agent.contributor.run import open_checkpoint
from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import load_vector
from client_agent.learning.models import build_model, model_spec
from client_agent.learning.trainer import train_round
from harness.attack.attack import Attempt, Found
from harness.attack.attacked_study import AttackedStudy
from harness.attack.inversion import rows_over_biases
from harness.attack.leak import CLAUSE, Question, most
from harness.attack.poisoning import Poison, Poisoned, poisoned
from harness.attack.scripted_agents import SITES, START, Federation, study
from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.simulate.case import Case, read_case
from harness.simulate.study_files import STUDIES
from protocol.arithmetic.fixed_point import clip, encode
from protocol.arithmetic.ring import to_signed
from protocol.messages.control import Study, TrainingSpec
from protocol.parameters import StudyParameters
from protocol.policy.site_policy import SitePolicy
from protocol.release import average_chunk
from protocol.shared_model import first_model

Floats = NDArray[np.float64]
Model = NDArray[np.float32]
_RARE: Final = 2.5
"""A row fires for inputs this many standard deviations along its direction: about 1 in 160."""
_LEAST_BIAS: Final = 64
"""Below this many errors of the encoding a bias's gradient is none."""
_MANY: Final = 10
_STEPS: Final = 100


_INPUTS, _ROWS, _CLASSES = 30, 256, 2
_SPEC: Final = model_spec("mlp", (_INPUTS,), (_ROWS,), _CLASSES)
_WHOLE: Final = TrainingSpec(batch_size=10_000)
_DIMENSION: Final = (_INPUTS + 1) * _ROWS + (_ROWS + 1) * _CLASSES
_PARAMETERS: Final = StudyParameters(dimension=_DIMENSION, clip_norm=16.0, least_contributors=3)


def planted(centre: Floats, spread: Floats, seed: int) -> Model:
    """A model whose rows look in random directions of standardised inputs, and fire far out only.

    Shapes:   centre and spread float64[inputs], what an attacker guesses of the data -> float32[dimension]
    """
    directions = np.random.default_rng(seed).normal(size=(_ROWS, _INPUTS))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    scaled = directions / spread
    outputs = np.repeat([0.5, -0.5], _ROWS)
    return np.concatenate([scaled.ravel(), -(scaled @ centre) - _RARE, outputs, np.zeros(_CLASSES)]).astype(np.float32)


def _study() -> Study:
    return study("trapped", parameters=_PARAMETERS, model=_SPEC, training=_WHOLE, rounds=3, seed=None)


class Hospitals:
    """The four hospitals whose honest updates are summed."""

    def __init__(self) -> None:
        self._sites = breast_cancer_five_hospitals(0).contributors
        self._everybody = np.concatenate([site.train.X for site in self._sites])
        self._spread = self._everybody.std(axis=0).astype(np.float64)
        self.planted = planted(self._everybody.mean(axis=0).astype(np.float64), self._spread, seed=4)

    def read_from(self, model: Model) -> int:
        """Records that some candidate, of one average of their updates at ``model``, comes near in every feature."""
        average = self._average(model).astype(np.float64)
        candidates = rows_over_biases(build_model(_SPEC, 0), average, _LEAST_BIAS / _PARAMETERS.scale)
        if not len(candidates):
            return 0
        records = self._everybody.astype(np.float64)
        errors = [np.min(np.max(np.abs(candidates - record) / self._spread, axis=1)) for record in records]
        return sum(bool(error <= 0.1) for error in errors)

    def _average(self, model: Model) -> Model:
        network, total = build_model(_SPEC, 0), np.zeros(_DIMENSION, dtype=np.uint64)
        for number, site in enumerate(self._sites):
            load_vector(network, model)
            batch = Examples(site.train.X, site.train.y)
            update = train_round(network, batch, _WHOLE, round=1, seed=1, device=torch.device("cpu")).update
            total += encode(clip(update, _PARAMETERS.clip_norm)[0], _PARAMETERS, bytes([number]) * 32)
        return average_chunk(to_signed(total), len(self._sites), _PARAMETERS)


def _planted_first(folder: Path) -> Found:
    """The requester names a first model with trap weights."""
    hospitals = Hospitals()
    with Federation(folder) as federation:
        taken = federation.welcome(federation.unwelcomed(SITES[0], _study()), hospitals.planted, 0)
    read = 0 if taken is None else hospitals.read_from(taken)
    return Found(read >= _MANY, read)


def _under_a_genuine_release(folder: Path) -> Found:
    """A genuine release of other sites is shown as what led to a model that it did not lead to."""
    of, own = study(), START * 2
    with Federation(folder) as federation:
        past = federation.round(of, 1, SITES[4:], version=0).past
        taken = federation.welcome(federation.agent(SITES[0], of), own, 1, past)
    took = taken is not None and np.array_equal(taken, own)
    return Found(took, float(took))


def _welcomed_again(folder: Path) -> Found:
    """The site's memory per model would begin afresh."""
    with Federation(folder) as federation:
        agent = federation.agent(SITES[0], study())
        federation.welcome(agent, START, 1)
        version = agent.state.model_version or 0
    return Found(version > 0, version)


def _steered(_: Path) -> Found:
    """The requester's own updates move the model to the trap, as far as the default caps on steps allow.

    The others' updates, which go elsewhere, are left out: this is the most that a requester can do.
    """
    hospitals, policy = Hospitals(), SitePolicy()
    step, model = min(policy.largest_step, policy.largest_path / _STEPS), first_model(_study())
    way = hospitals.planted.astype(np.float64) - model
    distance = float(np.linalg.norm(way))
    steered = (model + way * min(1.0, step * _STEPS / max(distance, 1e-12))).astype(np.float32)
    read = hospitals.read_from(steered)
    return Found(read >= _MANY, read)


_AT_SITES: Final = "client_agent.contributor.run."
_VOUCHED: Final = {f"{_AT_SITES}vouched": lambda *_: True}
_TRAPS: Final = {
    "model-planted-first": Attempt(_planted_first, {f"{_AT_SITES}first_checkpoint": open_checkpoint}),
    "model-under-a-genuine-release": Attempt(_under_a_genuine_release, _VOUCHED),
    "model-welcomed-again": Attempt(_welcomed_again, {**_VOUCHED, f"{_AT_SITES}missed_release": lambda *_: True}),
    "model-steered": Attempt(_steered),
}


# --- poisoned and falsified updates over whole studies ----------------------------------------------------------------

_LOST: Final = 0.03
"""Points of accuracy: three of the requester's 110 test examples."""


@cache
def _case() -> Case:
    return read_case(STUDIES / "poisoning.toml")


def _honest(variant: str, seed: int) -> Poisoned:
    return poisoned(AttackedStudy(_case(), variant, seed), 0, None)


@cache
def _honest_fedavg() -> Poisoned:
    """Has no defence that could be off: attacks share it."""
    return _honest("fedavg", 0)


def _poisoned(variant: str, seed: int, poison: Poison) -> Poisoned:
    return poisoned(AttackedStudy(_case(), variant, seed), 2, poison)


def _under_fedavg(poison: Poison, _: Path) -> Found:
    """The requester's model loses accuracy; nothing is opened about single sites."""
    line = _poisoned("fedavg", 0, poison)
    lost = _honest_fedavg().accuracy - line.accuracy
    return Found(lost > _LOST or line.triggered > 0.5, lost)


def _too_long(_: Path) -> Found:
    """Updates three clip norms long, where the study opens norms."""
    line = _poisoned("norm_bounded_fedavg", 0, Poison.SCALED)
    return Found(line.weight > 0.0, line.weight)


def _adaptive(variant: str, poison: Poison, _: Path) -> Found:
    """Poisoners that know the rule and the requester's update, under the rule that they keep just under.

    The requester's accuracy is meant over all seeds of the study: single ones differ.
    """
    lost = [_honest(variant, seed).accuracy - _poisoned(variant, seed, poison).accuracy for seed in _case().table.seeds]
    mean, spread = float(np.mean(lost)), float(np.std(lost, ddof=1))
    return Found(mean > _LOST, mean, f"standard deviation over {len(lost)} seeds {spread:.3f}")


def _falsified(question: Question, _: Path) -> Found:
    """30 rounds, in which the server asks one question each; whichever of its two plans says more counts.

    It spends its failures as if a site bore two, or asks as if it bore any number.
    """
    bits = most(question, (1, 2, 3))
    return Found(bits > 1.0, bits)


_FEDAVG: Final = {
    "poison-sign-flip": Poison.SIGN_FLIP,
    "poison-noise": Poison.NOISE,
    "poison-a-little-is-enough": Poison.A_LITTLE,
    "poison-min-max": Poison.MIN_MAX,
    "poison-min-sum": Poison.MIN_SUM,
    "free-rider-zeros": Poison.ZEROS,
    "free-rider-copies": Poison.COPY,
    "poison-labels": Poison.LABELS,
    "poison-backdoor": Poison.TRIGGER,
}
_ANY_LENGTH: Final[Mapping[str, object]] = {
    "protocol.rounds.judgement.too_long": lambda *_: frozenset(),
    "protocol.rounds.judgement.within_bound": lambda measured, bound: measured.took_part,
    "protocol.rules.fedavg.within_bound": lambda measured, bound: measured.took_part,
}
_POISONED: Final = {
    "poison-three-clip-norms": Attempt(_too_long, _ANY_LENGTH),
    **{name: Attempt(partial(_under_fedavg, poison)) for name, poison in _FEDAVG.items()},
    "poison-just-inside-erosion": Attempt(
        partial(_adaptive, "weight_erosion", Poison.JUST_INSIDE),
        {"protocol.rules.weight_erosion.WeightErosion._eroded": lambda rule, site, measured: site},
    ),
    "poison-inside-the-range-check": Attempt(partial(_adaptive, "fedavg", Poison.TWO_FACED)),
    "poison-inside-the-norm-bound": Attempt(partial(_adaptive, "norm_bounded_fedavg", Poison.TWO_FACED)),
    "poison-just-inside-multi-krum": Attempt(partial(_adaptive, "multi_krum", Poison.JUST_INSIDE)),
    "poison-two-faced-under-mallows": Attempt(partial(_adaptive, "mallows", Poison.TWO_FACED)),
    "falsified-norm": Attempt(partial(_falsified, Question.NORM), CLAUSE),
    "falsified-range-check": Attempt(partial(_falsified, Question.PROJECTION), CLAUSE),
    "falsified-pairs": Attempt(partial(_falsified, Question.GAP)),
}
ATTEMPTS: Final = {**_TRAPS, **_POISONED}
