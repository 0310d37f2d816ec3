"""Figures that the papers published: numbers quoted from their tables and text, and curves read from the data folder.

Sources: Grimberg 2020 (semester report, figures 6 and 9); Gengler, Beaussart, Yuan (MNIST, Table II and stored
results); du Terrail et al. 2022 (FLamby), Fed-Heart-Disease; Cerasti et al. 2023 gives no table, only words.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from harness.datasets.public_data import data_folder
from harness.simulate.charts import Curve
from protocol.errors import ConfigurationError

MNIST_LAST: Final = {
    "b_10": (0.9913, 0.9707, 0.9881),
    "b_100": (0.9826, 0.9176, 0.9642),
    "c_10": (0.9981, 0.9865, 0.9923),
    "c_100": (0.9875, 0.9701, 0.9778),
    "a_10": (0.989, 0.990, 0.970),
    "a_100": (0.936, 0.970, 0.890),
    "f_100": (0.945, 0.960, 0.887),
}
"""Last round, WE / FedAvg / Local."""
TITANIC: Final = {
    "age_strict": ((0.672, 0.784, 0.720), (0.606, 0.780, 0.783), (0.298, 0.922, 0.922), (0.553, 0.735, 0.727)),
    "age_some": ((0.637, 0.776, 0.781), (0.576, 0.775, 0.771), (0.592, 0.850, 0.809), (0.470, 0.727, 0.727)),
}
"""Round 30, users 0 to 3: FedAvg (its code adds row sums), WE, Local; means over test batches, not pooled."""
TITANIC_RATES: Final = {"FedAvg, row sums": 0.07, "WE": 3.0, "Local": 3.0}
FLAMBY: Final = {
    "pooled": {"cleveland": 0.783, "hungary": 0.764, "switzerland": 0.750, "va-long-beach": 0.644},
    "FedAvg": {"cleveland": 0.731, "hungary": 0.719, "switzerland": 0.650, "va-long-beach": 0.640},
    "FedAdam": {"cleveland": 0.752, "hungary": 0.746, "switzerland": 0.738, "va-long-beach": 0.667},
    "local": {"cleveland": 0.746, "hungary": 0.746, "switzerland": 0.725, "va-long-beach": 0.702},
}
"""Accuracy."""
_METHODS: Final = {"weight_erosion": "weight_erosion", "fedavg": "federated", "local": "local"}


def mnist_curve(folder: Path | None, setting: str, variant: str, key: str = "acc") -> Curve | None:
    """A published curve of one setting ("b_10"), None where the file is not there or holds none."""
    targets = _read(folder, "mnist_weight_erosion_curves.json")
    letter, sites = setting.split("_")
    of = {} if targets is None else targets["settings"].get(f"{letter.upper()}_{sites}", {})
    values = of.get(_METHODS[variant], {}).get(key)
    return None if values is None else Curve(variant, tuple(values), (0.0,) * len(values))


def titanic_curve(folder: Path | None, split: str, user: int, key: str) -> Curve | None:
    """A published curve (``weight_erosion``, ``global_fedavg``, ``alpha_agent_0`` ...) without round 0."""
    targets = _read(folder, "titanic_weight_erosion_curves.json")
    values = None if targets is None else targets[split.upper()][f"user_{user}"].get(key)
    return None if values is None else Curve(key, tuple(values[1:]), (0.0,) * (len(values) - 1))


def _read(folder: Path | None, name: str) -> dict[str, Any] | None:
    """None where the published curves are not on this machine: they are compared with, never shipped."""
    try:
        path = data_folder(folder) / "targets" / name
    except ConfigurationError:
        return None
    if not path.is_file():
        return None
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read
