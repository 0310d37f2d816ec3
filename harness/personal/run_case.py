"""All runs of a comparison of personal models, one after the other; finished ones are not done again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from client_agent.learning.flat_vector import pick_device
from harness.personal.case import PersonalCase, Variant
from harness.personal.detection import detections, detections_json
from harness.personal.plots import write_plots
from harness.personal.records import Evaluated, PersonalLine, ResultFolder
from harness.personal.run import Run, execute
from harness.simulation.run_one import Protection
from harness.training.device import one_thread
from host.placed_files import rewrite
from protocol.errors import ConfigurationError


@dataclass(frozen=True)
class PersonalOptions:
    """``data`` is the folder with the data sets (None: MOIETY_DATA); None of ``seeds`` and ``only`` is all of them.

    ``batched`` computes all sites' steps in one call, but APFL's; None: on a GPU, not on a CPU, where it saves no time.
    ``protection``: plain, or secure, which leaves out what pools the data unless ``only`` names it.
    """

    out: Path
    data: Path | None = None
    seeds: tuple[int, ...] | None = None
    only: tuple[str, ...] = ()
    device: str = "auto"
    batched: bool | None = None
    protection: Protection = Protection.PLAIN


def run_personal_case(
    case: PersonalCase, options: PersonalOptions, tell: Callable[[str], None] = lambda text: None
) -> tuple[PersonalLine, ...]:
    """Every seed of every variant, with one thread, then the plots; the lines of all runs in the folder come back.

    Raises: ConfigurationError, and when a finished run is of another file; UnusableUpdate when a model diverges
    """
    if options.protection is Protection.CKKS:
        raise ConfigurationError(
            f"{case.source}: a comparison of personal models runs with --protection plain or secure; for ciphertexts "
            "give a study file with key 'model.personal'"
        )
    secure = options.protection is Protection.SECURE
    folder, variants = ResultFolder(options.out), _variants(case, options, tell)
    device = pick_device(options.device)
    batched = device.type == "cuda" if options.batched is None else options.batched
    with one_thread():
        for seed in options.seeds or tuple(case.table.seeds):
            for variant in variants:
                if not _finished(folder.lines(), case, variant, seed, options.protection):
                    run = Run(case, variant, seed, options.data, device, batched, secure)
                    execute(run, folder, _teller(f"{variant.table.name}, seed {seed}", variant.study.rounds, tell))
    write_plots(case, folder)
    found = detections(case, folder)
    if found:
        rewrite(options.out / "detections.json", detections_json(found))
    for one in found:
        tell(
            f"{one.variant}, seed {one.seed}: {one.found} of {one.changed} changed columns of {one.site} marked in the "
            f"{one.layer} layer, {100 * one.elsewhere:.1f} % of all others; the strongest is number {one.rank}"
        )
    return folder.lines()


def _teller(name: str, rounds: int, tell: Callable[[str], None]) -> Callable[[Evaluated], None]:
    def show(evaluated: Evaluated) -> None:
        test = evaluated.test
        tell(f"{name}, round {evaluated.round} of {rounds}: F1 {test.mean_f1:.4f}, worst {test.worst_f1:.4f}")

    return show


def _variants(case: PersonalCase, options: PersonalOptions, tell: Callable[[str], None]) -> tuple[Variant, ...]:
    """The named variants; of all, those that can be protected where protection is asked for."""
    chosen = case.only(options.only)
    if options.only or options.protection is Protection.PLAIN:
        return chosen
    for variant in chosen:
        if not variant.table.scheme.protectable:
            tell(f"{variant.table.name}: pools the sites' data, so it has no protected run; left out")
    return tuple(variant for variant in chosen if variant.table.scheme.protectable)


def _finished(
    lines: tuple[PersonalLine, ...], case: PersonalCase, variant: Variant, seed: int, protection: Protection
) -> bool:
    """Whether the run has its line. Raises: ConfigurationError when lines are of another file or protection"""
    for line in lines:
        if line.protection != protection.value:
            raise ConfigurationError(
                f"{case.source}: the folder holds {line.protection} runs, these are {protection.value}; "
                "give another --out"
            )
        if (line.variant, line.seed) == (variant.table.name, seed):
            if line.study_digest != variant.digest:
                raise ConfigurationError(
                    f"{case.source}: variant {line.variant!r} is not the one whose results are there: it was changed; "
                    "give another --out"
                )
            return True
    return False
