"""Whether tampering with one site's data shows in the personal layers, by the marks of the heatmaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, TypeAdapter

from harness.personal.case import PersonalCase
from harness.personal.outliers import MARKED_DEVIATIONS, AffineLayers, affine_layers, deviations
from harness.personal.records import PersonalLine, ResultFolder


class Detection(BaseModel):
    """The marks of one run's layer. An entry counts as marked when its b or its w is.

    ``changed`` columns of ``site`` were tampered with, ``found`` of them are marked; ``elsewhere`` is the share of
    all other entries that are marked. ``strongest`` is the largest deviation of a changed entry, in standard
    deviations, and ``rank`` its place among all entries, from 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    variant: str
    seed: int
    layer: str
    site: str
    changed: int
    found: int
    elsewhere: float
    strongest: float
    rank: int


_DETECTIONS: Final = TypeAdapter(tuple[Detection, ...])


def detections(case: PersonalCase, folder: ResultFolder) -> tuple[Detection, ...]:
    """One for every finished run whose personal layer can show what was tampered with; empty without tampering."""
    tampering = case.table.tampering
    columns_of = {"input": tampering.shifted if tampering.shift else [], "target": tampering.swapped}
    found = []
    for line in folder.lines() if tampering.site is not None else ():
        for place, layers in personal_layers(case, folder, line):
            if tampering.site is not None and columns_of[place]:
                found.append(_detection(line, place, layers, tampering.site, columns_of[place]))
    return tuple(found)


def detections_json(found: Sequence[Detection]) -> bytes:
    """``detections.json``."""
    return _DETECTIONS.dump_json(tuple(found), indent=2)


def personal_layers(case: PersonalCase, folder: ResultFolder, line: PersonalLine) -> list[tuple[str, AffineLayers]]:
    """The run's personal layers by place, ``input`` and ``target``, after the last round."""
    model = case.only((line.variant,))[0].study.model
    if not model.personal:
        return []
    state = folder.final_state(line.variant, line.seed)
    found: list[tuple[str, AffineLayers]] = []
    start = 0
    for place, columns in (("input", model.inputs[0]), ("target", model.width)):
        if place in model.personal:
            found.append((place, affine_layers(state, start, columns)))
            start += 2 * columns
    return found


def _detection(line: PersonalLine, place: str, layers: AffineLayers, site: str, columns: Sequence[int]) -> Detection:
    strength = np.maximum(np.abs(deviations(layers.bias)), np.abs(deviations(layers.weight)))
    changed = np.zeros(strength.shape, dtype=bool)
    changed[line.sites.index(site), list(columns)] = True
    strongest = float(strength[changed].max())
    marked: NDArray[np.bool_] = strength > MARKED_DEVIATIONS
    return Detection(
        variant=line.variant,
        seed=line.seed,
        layer=place,
        site=site,
        changed=int(changed.sum()),
        found=int((marked & changed).sum()),
        elsewhere=float(marked[~changed].mean()),
        strongest=strongest,
        rank=int((strength > strongest).sum()) + 1,
    )
