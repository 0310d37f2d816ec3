"""What whoever watched a study is told at its end, and by which status."""

from __future__ import annotations

import pytest

from client_agent.report.outcome import Federated, federated, outcome_text, sums_of
from client_agent.site.events import RoundEnd, RoundRecord
from protocol.messages.control import EndCause, Purpose, StudyEnd, StudyEndState, StudyView, sign
from tests.unit.client_agent.federation import REQUESTER, keys

_CAUSES = {
    StudyEndState.COMPLETED: EndCause.ALL_ROUNDS_DONE,
    StudyEndState.LOCAL_ONLY: EndCause.ISOLATION,
    StudyEndState.FAILED: EndCause.STUDY_REFUSED,
    StudyEndState.CANCELLED: EndCause.CANCELLED,
}


def ended(state: StudyEndState, cause: EndCause | None = None) -> StudyView:
    end = StudyEnd(study_digest="0" * 64, state=state, cause=cause or _CAUSES[state], reason="why")
    signed = sign(end, REQUESTER, keys(REQUESTER).signing)
    return StudyView(study="unit", study_digest="0" * 64, end=signed, cursor=1, ready=(), mail=())


def rounds(*ends: RoundEnd, purpose: Purpose = Purpose.UPDATE) -> tuple[RoundRecord, ...]:
    return tuple(
        RoundRecord(time_s=0, study="unit", site="c1", round=number, state=end, purpose=purpose, model_version=number)
        for number, end in enumerate(ends, start=1)
    )


@pytest.mark.parametrize(
    ("state", "cause", "records", "how", "text"),
    [
        (StudyEndState.COMPLETED, None, rounds(RoundEnd.RELEASED), Federated.WHOLLY, ""),
        (
            StudyEndState.COMPLETED,
            None,
            rounds(RoundEnd.SKIPPED),
            Federated.NOT,
            "NOT FEDERATED: study unit is completed",
        ),
        (StudyEndState.CANCELLED, None, (), Federated.NOT, ""),
        (StudyEndState.LOCAL_ONLY, EndCause.NO_CONTRIBUTOR_NEEDED, rounds(RoundEnd.ALONE), Federated.NOT, ""),
        (
            StudyEndState.LOCAL_ONLY,
            None,
            rounds(RoundEnd.ALONE),
            Federated.NOT,
            "and no sum was made; the model is of this site's own data alone",
        ),
        (
            StudyEndState.LOCAL_ONLY,
            None,
            rounds(RoundEnd.RELEASED, RoundEnd.RELEASED, RoundEnd.ALONE),
            Federated.PARTLY,
            "after 2 sums; from round 3 on the model was trained on this site's own data alone",
        ),
        (StudyEndState.FAILED, None, (), Federated.NOT, "there is no model of the sites together"),
        (
            StudyEndState.FAILED,
            None,
            rounds(RoundEnd.RELEASED),
            Federated.PARTLY,
            "study unit is failed (why), after 1 sums",
        ),
    ],
)
def test_an_end_is_called_what_it_is(
    state: StudyEndState, cause: EndCause | None, records: tuple[RoundRecord, ...], how: Federated, text: str
) -> None:
    view = ended(state, cause)
    assert federated(view, records) is how
    said = outcome_text(view, records, at_requester=True)
    assert text in said
    assert bool(said) is bool(text)


def test_a_contributor_is_told_of_its_own_part_alone() -> None:
    said = outcome_text(ended(StudyEndState.COMPLETED), rounds(RoundEnd.DECLINED), at_requester=False)
    assert said.startswith("NOT IN ANY SUM: ")


def test_class_counts_are_no_training_and_a_summary_alone_is_what_was_asked() -> None:
    counts, alone = rounds(RoundEnd.RELEASED, purpose=Purpose.COUNTS), rounds(RoundEnd.ALONE)
    assert sums_of((*counts, *alone)) == 0
    assert sums_of(rounds(RoundEnd.RELEASED, purpose=Purpose.SUMMARY)) == 1
