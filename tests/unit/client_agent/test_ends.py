"""Only the requester's signature ends a study at a site, whatever servers show (docs/protocol.md 14)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from client_agent.contributor.run import Contributor
from client_agent.requester.study import StudyOver
from client_agent.site.events import EventKind
from client_agent.site.journal import StudyJournal
from client_agent.study.ends import require_end, shown_ends
from protocol.errors import AnnouncementMismatch, BadSignature
from protocol.messages.control import EndCause, Signed, StudyEnd, StudyEndState, StudyState, StudyView, sign
from protocol.sharing import Side
from tests.unit.client_agent.benches import contributor_bench, requester_bench
from tests.unit.client_agent.federation import PARAMETERS, ROSTER, ended_as, keys, operator_keys, study

STUDY = study()
DIGEST = STUDY.digest()
MODEL = np.ones(PARAMETERS.dimension, dtype=np.float32)
GENUINE = ended_as(StudyState.COMPLETED, DIGEST)


def end(signer: str = "r0", digest: str = DIGEST) -> Signed[StudyEnd]:
    message = StudyEnd(
        study_digest=digest, state=StudyEndState.COMPLETED, cause=EndCause.ALL_ROUNDS_DONE, reason="done"
    )
    keys_of = operator_keys(Side.A) if signer == "operator" else keys(signer)
    return sign(message, keys_of.name, keys_of.signing)


def by_nobody() -> Signed[StudyEnd]:
    return Signed[StudyEnd](message=end().message)


def stolen() -> Signed[StudyEnd]:
    """The requester's signature under another end."""
    other = end().message.model_copy(update={"state": StudyEndState.FAILED})
    return Signed[StudyEnd](message=other, signatures=end().signatures)


FORGED = {
    "unsigned": by_nobody(),
    "signed by the server": end("operator"),
    "signed by a site": end("c2"),
    "another end under the signature": stolen(),
    "another study's end": end(digest="00" * 32),
}


def view(shown: Signed[StudyEnd] | None) -> StudyView:
    return StudyView(study=STUDY.name, study_digest=DIGEST, end=shown, cursor=1, ready=(), mail=())


@pytest.mark.parametrize("forged", FORGED.values(), ids=[name.replace(" ", "-") for name in FORGED])
def test_what_the_requester_did_not_sign_ends_nothing_and_hides_no_genuine_end(forged: Signed[StudyEnd]) -> None:
    with pytest.raises((BadSignature, AnnouncementMismatch)):
        require_end(forged, ROSTER, DIGEST)
    for views in ((view(forged), view(None)), (view(forged), view(forged))):
        shown = shown_ends(views, ROSTER, DIGEST)
        assert shown.first is None
        assert shown.refused
    shown = shown_ends((view(forged), view(GENUINE)), ROSTER, DIGEST)
    assert (shown.first, shown.ends) == (GENUINE, (None, GENUINE))


@pytest.mark.parametrize("forged", FORGED.values(), ids=[name.replace(" ", "-") for name in FORGED])
def test_a_contributor_that_is_told_so_names_it_once_and_goes_on(tmp_path: Path, forged: Signed[StudyEnd]) -> None:
    with contributor_bench(tmp_path, STUDY, MODEL) as bench:
        bench.contributor.watch.both = lambda: (view(forged), view(forged))  # type: ignore[method-assign]
        assert [bench.contributor.react() for _ in range(3)] == [False] * 3
        assert bench.contributor.state.finished is None
        assert [event.kind for event in bench.events].count(EventKind.PROBLEM) == 1
        bench.contributor.watch.both = lambda: (view(forged), view(GENUINE))  # type: ignore[method-assign]
        assert bench.contributor.react()
        assert (bench.contributor.state.ended_by, bench.contributor.state.over) == (GENUINE, True)


@pytest.mark.parametrize("forged", FORGED.values(), ids=[name.replace(" ", "-") for name in FORGED])
def test_a_requester_that_is_told_so_goes_on(tmp_path: Path, forged: Signed[StudyEnd]) -> None:
    with requester_bench(tmp_path, STUDY, MODEL) as bench:
        for side in Side:
            bench.requester.watch.publish(side, view(forged))
        assert bench.requester.until(lambda a, b: "still here") == "still here"
        bench.requester.watch.publish(Side.B, view(GENUINE))
        with pytest.raises(StudyOver, match="completed: as asked"):
            bench.requester.until(lambda a, b: "still here")


def test_a_site_that_had_finished_without_evidence_goes_on(tmp_path: Path) -> None:
    """As an unsigned view had it under the old rule: the text alone ends nothing after a restart."""
    with contributor_bench(tmp_path, STUDY, MODEL) as bench:
        bench.contributor.save(finished="completed: says a server")
        journal: StudyJournal = bench.contributor.journal
        again = Contributor(bench.contributor.context, bench.contributor.signed_study, journal)
        assert again.state.finished is not None
        assert not again.state.over
        again.save(ended_by=GENUINE)
        assert again.state.over
