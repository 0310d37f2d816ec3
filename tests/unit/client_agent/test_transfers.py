"""A contribution's length, and what a site's cap will do to a study's rounds."""

from __future__ import annotations

from pathlib import Path

from client_agent.study.contribution import contribution_bytes, transfer_remarks
from protocol.messages.bodies import content_bytes
from protocol.messages.control import LayerShape, ShareKind, Study
from protocol.messages.purpose import StudyProtection
from tests.unit.client_agent.federation import study
from tests.unit.client_agent.test_daemon import settings

HOUR_S = 3600.0


def wide(dimension: int, deadline_s: float) -> Study:
    made = study()
    parameters = made.parameters.model_copy(update={"dimension": dimension})
    model = made.model.model_copy(update={"layers": (LayerShape(name="w", shape=(dimension,)),)})
    return made.model_copy(update={"parameters": parameters, "model": model, "round_deadline_s": deadline_s})


def test_what_does_not_fit_is_said_before_the_study_begins(tmp_path: Path) -> None:
    of = wide(1_000_000, HOUR_S)
    assert contribution_bytes(of) == 8_000_000
    assert transfer_remarks(of, settings(tmp_path, "c1")) == ()
    assert transfer_remarks(of, settings(tmp_path, "c1", bandwidth_up_bytes_per_s=100_000)) == ()
    (slow,) = transfer_remarks(wide(1_000_000, 600.0), settings(tmp_path, "c1", bandwidth_up_bytes_per_s=10_000))
    assert "8.0 MB: at bandwidth_up_bytes_per_s = 10000 it takes 800 s, and a round ends after 600 s" in slow


def test_under_ckks_a_contribution_is_as_long_as_its_ciphertexts() -> None:
    encrypted = wide(1_000_000, HOUR_S).model_copy(update={"protection": StudyProtection.CKKS})
    assert contribution_bytes(encrypted) == content_bytes(ShareKind.CIPHERTEXT, 1_000_001) > 8_000_000
