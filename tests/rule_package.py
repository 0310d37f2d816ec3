"""A package with rules, as pip would leave it on disk: modules, and a dist-info folder with entry points."""

from __future__ import annotations

from pathlib import Path

MODULE = '''
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from protocol.parameters import Needs
from protocol.rules.registry import PackagedRule
from protocol.rules.weight_erosion import WeightErosion


class Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    penalty: float = Field(default=0.01, ge=0)


class Loose(BaseModel):
    penalty: float = 0.01


def eroding(options, batch_size, grid):
    return WeightErosion(options.penalty, 0.4, batch_size, grid, "samples", ())


@dataclass(frozen=True)
class Greedy:
    """Lists everybody with more than the whole weight."""

    inner: WeightErosion
    grid: int
    needs = Needs.DISTANCES
    weights_never_rise = False
    selects = False

    def init(self, sites):
        return self.inner.init(sites)

    def admit(self, state, sites):
        return self.inner.admit(state, sites)

    def select(self, state, measured):
        return measured.took_part

    def apply(self, state, measured):
        return self.inner.apply(state, measured)

    def numerators(self, state):
        listed = self.inner.numerators(state)
        return tuple(one.model_copy(update={"numerator": self.grid + 1}) for one in listed)


ERODING = PackagedRule(Options, eroding)
LOOSE = PackagedRule(Loose, eroding)
GREEDY = PackagedRule(Options, lambda options, batch_size, grid: Greedy(eroding(options, batch_size, grid), grid))
NOTHING = PackagedRule(Options, lambda options, batch_size, grid: None)
NO_RULE = 3
'''
ENTRIES = """
[moiety.rules]
eroding = {module}:ERODING
loose = {module}:LOOSE
greedy = {module}:GREEDY
nothing = {module}:NOTHING
no_rule = {module}:NO_RULE
gone = {module}_gone:RULE

[console_scripts]
acme = {module}:main
"""


def install(folder: Path, package: str = "acme-rules", version: str = "1.2", entries: str = ENTRIES) -> None:
    """Write the package into a folder that is on ``sys.path``, over an earlier version of it."""
    module = package.replace("-", "_")
    about = folder / f"{module}.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (folder / f"{module}.py").write_text(MODULE, encoding="utf-8")
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n", encoding="utf-8")
    (about / "entry_points.txt").write_text(entries.format(module=module), encoding="utf-8")
