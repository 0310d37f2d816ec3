"""Five small sites, and studies over them, for runs in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import load_vector
from client_agent.learning.models import build_model, dimension, model_spec
from client_agent.learning.sampling import site_seed
from client_agent.learning.trainer import train_round
from harness.datasets.site_data import SiteData
from harness.engine.history import RunHistory
from harness.engine.loop import run_rounds
from harness.engine.run_state import Conditions
from protocol.messages.control import ModelSpec, RuleName, RuleSpec, Study, TrainingSpec
from protocol.parameters import StudyParameters

CPU: Final = torch.device("cpu")
NAMES: Final = ("requester", "near", "middle", "far", "other")
MODEL: Final = model_spec("linear", (3,), (), 2)
TRAINING: Final = TrainingSpec(batch_size=16, server_learning_rate=0.5)
SEED: Final = 9


def small_sites(
    sizes: Sequence[int] = (40,) * 5, *, turn: float = 0.5, flipped: str = "", scale: float = 1.0
) -> tuple[SiteData, ...]:
    """Sites whose true boundary turns further away from the requester's; one with its labels flipped.

    The requester alone has validation examples.
    """
    made = []
    for number, (name, size) in enumerate(zip(NAMES, sizes, strict=True)):
        X = (scale * np.random.default_rng(number).normal(size=(size, 3))).astype(np.float32)
        y = (X @ np.array([1.0, turn * number, 0.0]) > 0).astype(np.int64)
        part = Examples(X, 1 - y if name == flipped else y)
        made.append(SiteData(name, part, Examples(X[:0], y[:0]) if number else part, part))
    return tuple(made)


def small_study(
    rule: RuleName,
    rounds: int = 3,
    *,
    model: ModelSpec = MODEL,
    training: TrainingSpec = TRAINING,
    clip_norm: float = 4.0,
    grid: int = 32,
    seed: int = SEED,
    **options: Any,
) -> Study:
    """A study that no federation signed; ``options`` are the rule's."""
    return Study(
        name="test",
        roster_digest="00" * 32,
        parameters=StudyParameters(
            dimension=dimension(model) + rule.self_weighted, clip_norm=clip_norm, weight_grid=grid, least_contributors=3
        ),
        rule=RuleSpec.model_validate({"name": rule, **options}),
        model=model,
        training=training,
        rounds=rounds,
        seed=seed,
    )


def raw_updates(vector: np.ndarray, round_number: int, sites: Sequence[SiteData]) -> np.ndarray:
    """The sites' updates from a model before clipping, float64[S, D], the requester's first."""
    rows = []
    for site in sites:
        model = build_model(MODEL, 0)
        load_vector(model, vector)
        seed = site_seed(SEED, site.name)
        rows.append(train_round(model, site.train, TRAINING, round=round_number, seed=seed, device=CPU).update)
    return np.array(rows, dtype=np.float64)


def run_plain(study: Study, sites: Sequence[SiteData], *, resume: Any = None, **options: Any) -> RunHistory:
    """A whole run without protection; ``options`` are those of :class:`Conditions`, and ``after_round``."""
    after_round = options.pop("after_round", lambda progress: None)
    return run_rounds(study, sites, conditions=Conditions(**options), resume=resume, after_round=after_round)
