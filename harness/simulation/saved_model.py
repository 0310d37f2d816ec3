"""A simulated study's last model as a folder of ``moiety model export``, for ``moiety model predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from client_agent.learning.flat_vector import load_personal, load_vector
from client_agent.product.export import export
from client_agent.product.held import HeldModel, empty_network
from client_agent.scoring.score import FinalScores
from client_agent.site.events import RoundEnd, RoundRecord
from client_agent.site.journal import SiteState
from harness.engine.history import RoundKind, RunEnd, RunHistory
from harness.training.sources import own_sources
from protocol.wire.messages import EndCause, Signed, Study, StudyEnd, StudyEndState

_ENDS: Final = {
    RunEnd.COMPLETED: (StudyEndState.COMPLETED, EndCause.ALL_ROUNDS_DONE),
    RunEnd.LOCAL_OPTIMUM: (StudyEndState.COMPLETED, EndCause.LOCAL_OPTIMUM),
    RunEnd.LOCAL_ONLY: (StudyEndState.LOCAL_ONLY, EndCause.POLICY),
}
_STEPS: Final = {RoundKind.RELEASED: RoundEnd.RELEASED, RoundKind.ALONE: RoundEnd.ALONE}
_MOST_CHARACTERS: Final = 500


def save_model(study: Study, history: RunHistory, data: Path, plugin: Path | None, out: Path, *, examples: int) -> None:
    """Write the folder, as the requester would; its card says that the model is simulated.

    ``data`` is the requester's folder, which has the transformation of rows where the study has a schema; ``examples``
    are in its test part.

    Raises: ConfigurationError when ``out`` is there already
    """
    network = empty_network(study, plugin, own_sources())
    load_vector(network, history.final_model)
    load_personal(network, history.personal)
    records = _records(history)
    state, cause = _ENDS[history.end]
    end = StudyEnd(study_digest=study.digest(), state=state, cause=cause, reason=history.reason[:_MOST_CHARACTERS])
    site = SiteState(study_digest=study.digest(), training_seed=0, ended_by=Signed[StudyEnd](message=end))
    version = len(records)
    last = FinalScores(examples=examples, samples=0, scores=history.rounds[-1].test_scores)
    scores = history.final_scores or last
    held = HeldModel(study, site, version, history.final_model, network.eval(), records, scores, simulated=True)
    export(held, data, out, is_requester=True, plugin=plugin)


def _records(history: RunHistory) -> tuple[RoundRecord, ...]:
    """The rounds that stepped the model."""
    stepped = [record for record in history.rounds if record.kind in _STEPS]
    return tuple(
        RoundRecord(
            time_s=0,
            study=history.study,
            site=history.requester,
            round=record.round,
            state=_STEPS[record.kind],
            model_version=version,
            took_part=record.took_part,
            alphas=record.alphas,
        )
        for version, record in enumerate(stepped, start=1)
    )
