"""Every grain over a case's seeds, and what comes of it in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from harness.grain.blocks import Block
from harness.grain.costs import cost_of
from harness.grain.grained_run import Grain, GrainedRun
from harness.simulation.case import read_case
from harness.simulation.files.json_lines import append_line
from harness.simulation.options import parse_seeds
from protocol.parameters import MIN_SKETCH_LENGTH


def run_grains(study_file: Path, data: Path | None, seeds: str, rounds: int | None, out: Path | None) -> Iterator[str]:
    """One text a run and two for the costs. Raises: ConfigurationError"""
    case = read_case(study_file)
    if rounds is not None:
        fedavg = case.variant("fedavg")
        shorter = replace(fedavg, study=fedavg.study.model_copy(update={"rounds": rounds}))
        case = replace(case, variants=(shorter,))
    blocks: dict[Grain, dict[str, int]] = {}
    for seed in parse_seeds(seeds):
        for grain in Grain:
            line = GrainedRun(case, grain, seed, data).line()
            blocks[grain] = line.blocks
            if out is not None:
                out.parent.mkdir(parents=True, exist_ok=True)
                append_line(out, line)
            yield (
                f"{line.study}, seed {seed}, {grain.value}: log-loss {line.log_loss[-1]:.4f}, accuracy "
                f"{line.accuracy:.3f}, own weight {line.own_weight:.3f}, {line.seconds:.1f} s"
            )
    contributors = (case.table.sites or 2) - 1
    for grain in (Grain.MODEL, Grain.LAYERS):
        cost = cost_of(_blocks(blocks[grain]), contributors, MIN_SKETCH_LENGTH)
        yield (
            f"{grain.value}: {cost.opened} numbers opened, {cost.products:,} products, {cost.bytes / 1e6:.1f} MB "
            f"between the servers in a measured round of {contributors} contributors"
        )


def _blocks(sizes: dict[str, int]) -> tuple[Block, ...]:
    found: list[Block] = []
    for name, size in sizes.items():
        start = found[-1].stop if found else 0
        found.append(Block(name, start, start + size))
    return tuple(found)
