"""Every attack that can be run by its name: the rows of ``attacks.csv``, and how each is made."""

from __future__ import annotations

import csv
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from harness.adversaries import (
    chosen_queries,
    ckks_attacks,
    curious_servers,
    edge_floods,
    enrolment_attacks,
    exact_counts,
    forked_views,
    held_uploads,
    hostile_answers,
    list_attacks,
    model_attacks,
    network_attacks,
    outside,
    poisoned_models,
    proxy_attacks,
    refused_messages,
    round_attacks,
    second_ends,
    sum_attacks,
    wrong_sums,
    wrong_updates,
)
from harness.adversaries.attack import Attack, Attempt, Party
from protocol.errors import ConfigurationError

_MODULES: Final = (
    *(refused_messages, wrong_updates, wrong_sums, round_attacks, held_uploads, second_ends, forked_views),
    *(list_attacks, sum_attacks, model_attacks, chosen_queries, exact_counts, curious_servers),
    *(ckks_attacks, proxy_attacks, outside, edge_floods, enrolment_attacks, hostile_answers, network_attacks),
    poisoned_models,
)
_WITH_TENSEAL: Final = ("ckks-", "ciphertext")


def has_ckks() -> bool:
    """Return whether attacks on ciphertexts can be tried here: TenSEAL comes with the extra ``he`` alone."""
    return find_spec("tenseal") is not None


@cache
def catalogue() -> dict[str, Attack]:
    """Name -> attack, in the order of ``attacks.csv``.

    Raises: ConfigurationError, where a row or an attempt stands alone, or a name is there twice
    """
    with Path(__file__).with_name("attacks.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    attempts: dict[str, Attempt] = {}
    names = [row["name"] for row in rows]
    twice = {name for name in names if names.count(name) > 1}
    for module in _MODULES:
        twice |= attempts.keys() & module.ATTEMPTS.keys()
        attempts |= module.ATTEMPTS
    odd = twice | (set(names) ^ attempts.keys())
    if odd:
        raise ConfigurationError(
            f"attacks.csv and ATTEMPTS differ, or have a name twice: {', '.join(sorted(odd))}; every attack has one "
            "row and one attempt"
        )
    return {
        row["name"]: Attack(
            name=row["name"],
            party=Party(row["party"]),
            promised=row["promised"] == "yes",
            tries=row["tries"],
            defence=row["defence"],
            figure=row["figure"],
            how=attempts[row["name"]],
        )
        for row in rows
        if has_ckks() or not row["name"].startswith(_WITH_TENSEAL)
    }
