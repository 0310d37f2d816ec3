"""The text of case files, for tests that say only what matters to them."""

from __future__ import annotations

import json


def case_text(
    *tables: str,
    rounds: int = 3,
    data: str = "breast_cancer",
    case: str = "",
    model: str = 'kind = "linear"',
    inputs: int = 30,
    training: str = "batch_size = 16",
    clip_norm: float = 4.0,
    parameters: str = "",
) -> str:
    """A case of a linear model; ``case``, ``model``, ``training`` and ``parameters`` are lines of these tables.

    ``tables`` come last: variants, and further tables of the study.
    """
    lines = (
        f'name = "try"\nrounds = {rounds}',
        f'[case]\ndata = "{data}"\n{case}',
        f"[model]\n{model}\ninputs = [{inputs}]",
        f"[training]\n{training}",
        f"[parameters]\nclip_norm = {clip_norm}\n{parameters}",
        *tables,
    )
    return "\n".join(lines)


def variant(name: str, more: str = "", rule: str = "", **options: object) -> str:
    """A variant of this rule, or of the rule that it is called by; ``more`` are further lines."""
    given = "".join(f", {key} = {json.dumps(value)}" for key, value in options.items())
    return f'[[variant]]\nname = "{name}"\nrule = {{ name = "{rule or name}"{given} }}\n{more}'
