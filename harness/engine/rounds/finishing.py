"""The requester's local finish after the last round of a run, as a record of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from client_agent.learning.at_requester.finish import LocalFinish
from client_agent.learning.at_requester.finish_table import FinishTable
from client_agent.learning.data import Examples
from client_agent.learning.plugin import site_loss
from harness.datasets.site_data import SiteData
from harness.engine.history import RoundKind
from harness.engine.record import round_record
from harness.engine.run_state import Progress, Run


def without_held_out(
    sites: Sequence[SiteData], finish: FinishTable | None, seed: int
) -> tuple[Sequence[SiteData], Examples]:
    """The sites as the shared rounds see them, and what the requester holds out of them. Raises: ConfigurationError"""
    train = sites[0].train
    if finish is None:
        return sites, Examples(train.X[:0], train.y[:0])
    seen, held = finish.parts(train, seed)
    return (replace(sites[0], train=seen), *sites[1:]), held


def finished(run: Run, progress: Progress, held: Examples) -> tuple[Progress, str]:
    """One record more, and how strong the pull was. Raises: ConfigurationError, UnusableUpdate"""
    state, requester = progress.state, run.requester
    loss = site_loss(run.study, run.plugin, requester.train.y)
    ended = LocalFinish(run.model, loss, run.study.training.l2, requester.train, held).run(run.model_of(state))
    vector = state.vector.copy()
    vector[: ended.vector.size] = ended.vector
    after = replace(state, vector=vector)
    record = round_record(run, after, len(progress.records) + 1, RoundKind.FINISHED, ())
    how = "the local finish kept the shared model" if ended.pull is None else f"local finish with pull {ended.pull:.2g}"
    return Progress(after, (*progress.records, record)), how
