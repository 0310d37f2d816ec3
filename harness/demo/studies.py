"""The demo's two studies and the heart-disease study, with their fixed settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from client_agent.learning.models import BuiltIn, dimension, model_spec
from harness.datasets.site_data import Federation
from protocol.messages.control import RuleName, RuleSpec, Study, TrainingSpec
from protocol.messages.purpose import USUAL_PROTECTION, StudyProtection
from protocol.parameters import StudyParameters

_GRID: Final = 32


@dataclass(frozen=True)
class StudySettings:
    """Everything about a study but its rule, roster and seed."""

    name: str
    model: BuiltIn
    hidden: tuple[int, ...]
    training: TrainingSpec
    clip_norm: float
    distance_penalty: float
    size_penalty: float
    rounds: int
    list_every: int
    least_contributors: int


# Learning rates, batch sizes and penalties were chosen by the requester's validation accuracy after the last round,
# averaged over 8 to 20 seeds from 100 on (plain runs; reports use seeds from 0). Between settings within one standard
# error, the one was taken that erodes visibly and keeps all contributors. Clip norms are a power of two that hardly
# ever clips at these settings. Every contributor is in every sum, and rounds, batches and how long a list stays were
# chosen such that each site's isolation stays above 0.5 with every seed, where sites by default demand 0.3:
# docs/results/sums.md.
#
# breast cancer: 10 rounds at rate 1 (30 at rate 0.3 let isolation fall to .05); batches 8, 16, 32; lists kept for 1, 2,
# 3, 5 rounds; p_d 0.01, 0.03: Weight Erosion and FedAvg within .96 to .97, Local .93. Seeds 100 to 105.
BREAST_CANCER: Final = StudySettings(
    name="breast-cancer",
    model="linear",
    hidden=(),
    training=TrainingSpec(update="gradient", batch_size=16, server_learning_rate=1.0),
    clip_norm=4.0,
    distance_penalty=0.01,
    size_penalty=0.1,
    rounds=10,
    list_every=5,
    least_contributors=4,
)
# digits: rates 0.03, 0.1, 0.3; p_d 0.005 to 0.02; p_s 0.02, 0.1; 15 or 20 rounds; 5 or 10 sites; the requester
# trains on 15 or 25 % of its images (with 40 %, Local leaves nothing to win). 10,810 parameters: sketched. Lists kept
# for 1, 2, 3, 5 rounds: .98 to .99, isolation at least .52, .58, .60, .65 (seeds 100 to 103); the sites remember the
# sums of all of the demo's studies, and only with 5 does FedAvg still pass after Weight Erosion.
DIGITS: Final = StudySettings(
    name="digits",
    model="mlp",
    hidden=(144,),
    training=TrainingSpec(
        update="local_sgd", batch_size=16, epochs=1, local_learning_rate=0.1, server_learning_rate=0.1
    ),
    clip_norm=16.0,
    distance_penalty=0.015,
    size_penalty=0.1,
    rounds=15,
    list_every=5,
    least_contributors=4,
)
# heart disease: rates 0.1, 0.3, 1; batches 8, 16; p_d 0.002 to 0.02; 10 rounds. Local beats FedAvg at every setting.
HEART_DISEASE: Final = StudySettings(
    name="heart-disease",
    model="linear",
    hidden=(),
    training=TrainingSpec(update="gradient", batch_size=16, server_learning_rate=0.3),
    clip_norm=4.0,
    distance_penalty=0.01,
    size_penalty=0.1,
    rounds=10,
    list_every=5,
    least_contributors=3,
)


OWN_WEIGHTS_GRID: Final = 2
"""The grid where sites weigh themselves: a policy takes every other weight as the smallest, here one half."""


def study_of(
    settings: StudySettings,
    federation: Federation,
    rule: RuleName,
    roster_digest: str,
    seed: int,
    protection: StudyProtection = USUAL_PROTECTION,
) -> Study:
    """A study of ``federation`` by ``rule``; ``seed`` fixes initial model and batches."""
    model = model_spec(settings.model, federation.inputs, settings.hidden, len(federation.class_names))
    return Study(
        name=settings.name,
        roster_digest=roster_digest,
        parameters=StudyParameters(
            dimension=dimension(model) + rule.self_weighted,
            clip_norm=settings.clip_norm,
            weight_grid=OWN_WEIGHTS_GRID if rule.self_weighted else _GRID,
            least_contributors=settings.least_contributors,
        ),
        rule=_rule_spec(settings, rule),
        model=model.named(federation.feature_names, federation.class_names),
        training=settings.training,
        rounds=settings.rounds,
        list_every=settings.list_every,
        protection=protection,
        seed=seed,
    )


def _rule_spec(settings: StudySettings, rule: RuleName) -> RuleSpec:
    """Only Weight Erosion takes the penalties."""
    if rule is not RuleName.WEIGHT_EROSION:
        return RuleSpec(name=rule)
    return RuleSpec(name=rule, distance_penalty=settings.distance_penalty, size_penalty=settings.size_penalty)
