"""A small comparison: five sites of two features, and its file."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from client_agent.learning.data import Examples
from client_agent.learning.models import build_model, model_spec
from harness.datasets.site_data import Federation, SiteData
from harness.engine.all_sites import Setting
from protocol.messages.control import ModelSpec, TrainingSpec

CPU = torch.device("cpu")
SPEC = model_spec("linear", (2,), (), 3)
PERSONAL = model_spec("linear", (2,), (), 3, personal=("input",))
TRAINING = TrainingSpec(update="local_sgd", batch_size=4, local_learning_rate=0.5, server_learning_rate=0.5)
CENTRES = np.array([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
FILE = """
name = "small"
rounds = 6
[personal]
data = "har_subjects"
seeds = [0]
evaluate_every = 2
[model]
kind = "linear"
inputs = [2]
classes = 3
[rule]
name = "fedavg"
[training]
update = "local_sgd"
batch_size = 4
local_learning_rate = 0.5
server_learning_rate = 0.5
[parameters]
clip_norm = 64.0
[[variant]]
name = "ifedavg"
scheme = "averaged"
model = { personal = ["input", "target"] }
[[variant]]
name = "fedavg"
scheme = "averaged"
fine_tune_epochs = 2
[[variant]]
name = "apfl"
scheme = "mixed"
[[variant]]
name = "local"
scheme = "alone"
[[variant]]
name = "centralised"
scheme = "centralised"
"""


def site(name: str, seed: int, rows: int = 12, shift: float = 0.0) -> SiteData:
    """Three classes around fixed centres; ``shift`` is added to the first feature."""
    random = np.random.default_rng([seed, 77])

    def part(count: int) -> Examples:
        y = random.integers(0, 3, size=count)
        X = CENTRES[y] + random.normal(size=(count, 2)) + [shift, 0]
        return Examples(X.astype(np.float32), y)

    return SiteData(name, part(rows), part(0), part(20))


def federation(sites: int = 5) -> Federation:
    return Federation("small", (2,), ("a", "b", "c"), tuple(site(f"s{k}", k, 8 + k) for k in range(sites)))


def setting(spec: ModelSpec = SPEC, training: TrainingSpec = TRAINING, **changes: Any) -> Setting:
    values: dict[str, Any] = {"clip_norm": 64.0, "sites": federation().sites} | changes
    return Setting.of(model=build_model(spec, 1), seed=3, training=training, device=CPU, **values)
