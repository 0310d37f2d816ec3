"""Models of the requester's own making, on which single records can be read out of an honest sum.

Five hospitals of the breast cancer data set, of which four are summed; the model is an MLP with trap weights
(``trap_weights.py``). The figure is how many of their 365 records the requester holds within a tenth of a standard
deviation in every feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from client_agent.contributor.welcome import open_checkpoint
from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import load_vector
from client_agent.learning.models import build_model, model_spec
from client_agent.learning.trainer import compute_update
from harness.adversaries.catalogue.attack import Attack, Found, Party
from harness.adversaries.scripted_agents import ROSTER, SITES, START, Federation, study
from harness.adversaries.trap_weights import Trap, records_read, steered
from harness.datasets.breast_cancer import breast_cancer_five_hospitals
from protocol.arithmetic.fixed_point import clip, encode
from protocol.arithmetic.ring import to_signed
from protocol.first_model import first_model
from protocol.parameters import StudyParameters
from protocol.policy.site_policy import SitePolicy
from protocol.release import average_chunk
from protocol.wire.messages import RuleName, RuleSpec, Study, TrainingSpec

_ROWS = 256
_SPEC = model_spec("mlp", (30,), (_ROWS,), 2)
_TRAP = Trap(30, _ROWS, 2)
_WHOLE = TrainingSpec(batch_size=10_000)
_PARAMETERS = StudyParameters(dimension=_TRAP.dimension, clip_norm=16.0, least_contributors=3)
_MANY = 10
_STEPS = 100
Model = NDArray[np.float32]


def _study() -> Study:
    return Study(
        name="trapped",
        roster_digest=ROSTER.digest(),
        parameters=_PARAMETERS,
        rule=RuleSpec(name=RuleName.FEDAVG),
        model=_SPEC,
        training=_WHOLE,
        rounds=3,
    )


class Sites:
    """The four hospitals whose honest updates are summed."""

    def __init__(self) -> None:
        self._sites = breast_cancer_five_hospitals(0).contributors
        self.records = [site.train.X for site in self._sites]
        everybody = np.concatenate(self.records)
        self.spread = everybody.std(axis=0).astype(np.float64)
        self.planted: Model = _TRAP.planted(everybody.mean(axis=0).astype(np.float64), self.spread, seed=4)

    def read_from(self, model: Model) -> int:
        """Records read from one average of their updates at ``model``."""
        candidates = _TRAP.candidates(self._average(model), 1 / _PARAMETERS.scale)
        return records_read(candidates, self.records, self.spread, within=0.1).records

    def _average(self, model: Model) -> Model:
        network, total = build_model(_SPEC, 0), np.zeros(_TRAP.dimension, dtype=np.uint64)
        for number, site in enumerate(self._sites):
            load_vector(network, model)
            batch = Examples(site.train.X, site.train.y)
            update = compute_update(network, batch, _WHOLE, round=1, seed=1, device=torch.device("cpu"))
            total += encode(clip(update, _PARAMETERS.clip_norm)[0], _PARAMETERS, bytes([number]) * 32)
        return average_chunk(to_signed(total), len(self._sites), _PARAMETERS)


class PlantedFirstModel(Attack):
    """The requester names a first model with trap weights."""

    name = "model-planted-first"
    party = Party.REQUESTER
    tries = "has the sites begin with a model whose rows fire for single records"
    defence = "every site derives version 0 from the study itself"
    figure = "of 365 records read"
    without: Mapping[str, object] = {"client_agent.contributor.run.first_checkpoint": open_checkpoint}

    def attempt(self, folder: Path) -> Found:
        sites = Sites()
        with Federation(folder) as federation:
            taken = federation.welcome(federation.unwelcomed(SITES[0], _study()), sites.planted, 0)
        read = 0 if taken is None else sites.read_from(taken)
        return Found(read >= _MANY, read)


class BorrowedVersion(Attack):
    """A genuine release of other sites is shown as what led to a model that it did not lead to."""

    name = "model-under-a-genuine-release"
    party = Party.REQUESTER
    tries = "hands a site a model of its own as what came of a round that other sites did make"
    defence = "the word of more than half of a release's contributors, under the model's digest"
    figure = "models of the requester's own making that the site took"
    without: Mapping[str, object] = {"client_agent.contributor.run.vouched": lambda *_: True}

    def attempt(self, folder: Path) -> Found:
        of, own = study(), START * 2
        with Federation(folder) as federation:
            past = federation.round(of, 1, SITES[4:], version=0).past
            taken = federation.welcome(federation.agent(SITES[0], of), own, 1, past)
        took = taken is not None and np.array_equal(taken, own)
        return Found(took, float(took))


class WelcomedAgain(Attack):
    """What a site remembers per model would begin afresh."""

    name = "model-welcomed-again"
    party = Party.REQUESTER
    tries = "sends a site the model that it has once more, under a newer number, so that counts per model start afresh"
    defence = "a newer model comes with the evidence of the release that led to it, or is none"
    figure = "newer versions that the site took"
    without: Mapping[str, object] = {
        "client_agent.contributor.run.vouched": lambda *_: True,
        "client_agent.contributor.run.missed_release": lambda *_: True,
    }

    def attempt(self, folder: Path) -> Found:
        with Federation(folder) as federation:
            agent = federation.agent(SITES[0], study())
            federation.welcome(agent, START, 1)
            version = agent.state.model_version or 0
        return Found(version > 0, version)


class SteeredModel(Attack):
    """The requester's own updates move the model to the trap, as far as the default caps on steps allow."""

    name = "model-steered"
    party = Party.REQUESTER
    tries = "steers the model to trap weights by its own updates over 100 rounds"
    defence = "largest_step and largest_path of a site's policy, where they are shorter than honest studies need"
    figure = "of 365 records read"
    promised = False
    without: Mapping[str, object] = {}

    def attempt(self, folder: Path) -> Found:
        sites, policy = Sites(), SitePolicy()
        step = min(policy.largest_step, policy.largest_path / _STEPS)
        read = sites.read_from(steered(first_model(_study()), sites.planted, step, _STEPS))
        return Found(read >= _MANY, read)


def crafted_models() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return PlantedFirstModel(), BorrowedVersion(), WelcomedAgain(), SteeredModel()
