"""One example of a study and of every message inside it, all fields of them (``examples.py``)."""

from __future__ import annotations

from typing import Final

from tests.frozen.values import Fields, digest

LAYER: Final[Fields] = {"name": "weight", "shape": [2, 3]}
ARGUMENT: Final[Fields] = {"name": "layers", "value": [1, 2.5, True, "basic", [3, "x"]]}
ARCHITECTURE: Final[Fields] = {
    "library": "monai",
    "library_version": "1.6.1",
    "name": "ResNet",
    "arguments": [ARGUMENT],
}
FROZEN: Final[Fields] = {"values_digest": digest("frozen"), "trainable": ["fc"], "weights": "resnet18.safetensors"}
MODEL: Final[Fields] = {
    "kind": "library",
    "inputs": [3],
    "hidden": [4, 2],
    "classes": 3,
    "activation": "tanh",
    "dropout": 0.25,
    "personal": ["input", "target"],
    "feature_names": ["age", "sex", "größe"],
    "class_names": ["none", "some", "much"],
    "architecture": ARCHITECTURE,
    "buffers": "local",
    "frozen": FROZEN,
    "layers": [LAYER, {"name": "bias", "shape": []}],
}
TRAINING: Final[Fields] = {
    "update": "local_sgd",
    "batch_size": 16,
    "epochs": 3,
    "local_learning_rate": 0.05,
    "server_learning_rate": 0.5,
    "l2": 0.001,
    "momentum": 0.9,
    "learning_rate_decay": 0.5,
    "decay_every_rounds": 4,
    "batches": "cycled",
    "class_weights": "inverse_frequency",
}
SECOND_WEIGHT: Final[Fields] = {"site": "clinic-2", "weight": 0.5}
RULE: Final[Fields] = {
    "name": "fedadam",
    "distance_penalty": 0.03,
    "size_penalty": 0.4,
    "erosion_applies": "next_round",
    "epochs_counted": "batches",
    "second_weights": [SECOND_WEIGHT],
    "server_momentum": 0.8,
    "second_moment_decay": 0.95,
    "adaptivity": 0.01,
    "byzantine": 2,
    "selected": 5,
    "largest_count": 900,
    "norm_bound": 2.5,
    "step": 0.25,
    "criterion": "raw",
    "bias_factor": 1.5,
    "variance_factor": 0.75,
    "measure_every": 5,
    "averages": "sums",
}
COLUMN: Final[Fields] = {
    "name": "age",
    "type": "number",
    "role": "target",
    "unit": "years",
    "range": [0.0, 120.0],
    "categories": [],
    "labels": [],
    "other": None,
    "missing": "drop_row",
    "missing_marks": ["-9"],
    "centre": 54.5,
    "spread": 9.0,
    "format": "",
    "detection_limit": "half",
}
SPLIT: Final[Fields] = {"order": "time", "test": 0.25, "validation": 0.125, "seed": 3}
SCHEMA: Final[Fields] = {
    "columns": [
        {"name": "age", "type": "number", "unit": "years", "range": [18.0, 120.0], "centre": 54.5, "spread": 9.0},
        {"name": "sex", "type": "boolean", "categories": ["f", "m"], "missing": "median"},
        {
            "name": "größe",
            "type": "integer",
            "range": [0.0, 250.0],
            "missing_marks": ["-9"],
            "centre": 170.0,
            "spread": 8.0,
        },
        {"name": "seen", "type": "time", "role": "observed_at", "format": "%d.%m.%Y"},
        {
            "name": "lesions",
            "type": "category",
            "role": "target",
            "categories": ["0", "1", "2", "3"],
            "labels": ["none", "some", "much", "much"],
            "other": "3",
        },
    ],
    "header": False,
    "missing_marks": ["?"],
    "split": SPLIT,
    "scaling": "common",
    "query": "SELECT age, sex, height, seen, lesions FROM visits",
}
SUMMARY: Final[Fields] = {
    "bins": 10,
    "most_rows": 2000,
    "least_examples": 20,
    "rounded_to": 10,
    "second_moments": True,
}
PRIVACY: Final[Fields] = {"unit": "record", "record_clip": 0.5, "noise_multiplier": 1.25}
RANKING: Final[Fields] = {"penalty": 0.02, "clip_norm": 8.0}
TASK: Final[Fields] = {"kind": "survival", "loss": "cox", "huber_delta": 1.0, "ties": "breslow"}
STUDY: Final[Fields] = {
    "version": "moiety/2",
    "name": "lungs",
    "roster_digest": digest("roster"),
    "parameters": {
        "dimension": 7,
        "clip_norm": 4.0,
        "encoded_norm_log2": 20,
        "weight_grid": 64,
        "sketch_length": 4096,
        "least_contributors": 4,
        "assumed_colluders": 1,
    },
    "rule": RULE,
    "model": MODEL,
    "training": TRAINING,
    "rounds": 30,
    "list_every": 5,
    "round_deadline_s": 120.5,
    "correlation_source": "dealer",
    "protection": "shares",
    "privacy": None,  # what noise does not cover stands beside
    "ranking": RANKING,
    "seed": 11,
    "pretrained_digest": digest("pretrained"),
    "task": {"kind": "classes", "loss": None, "huber_delta": 1.0, "ties": "efron"},
    "data_schema": SCHEMA,
    "summary": SUMMARY,
    "tags": True,
}
