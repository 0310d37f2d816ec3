"""A requester that chooses the model: trap weights read single records out of an honest average of four sites.

Boenisch et al. 2023 (arXiv 2112.02918); MediLeak (arXiv 2407.09972).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import load_vector
from client_agent.learning.models import build_model, model_spec
from client_agent.learning.trainer import compute_update
from client_agent.site.events import EventKind
from client_agent.site.letter import Welcome
from harness.adversaries.trap_weights import Trap, records_read, steered
from harness.datasets.breast_cancer import breast_cancer_five_hospitals
from protocol.arithmetic.fixed_point import clip, encode
from protocol.arithmetic.ring import to_signed
from protocol.bodies.letter import seal_checkpoint, seal_letter
from protocol.evidence import PastRelease
from protocol.first_model import first_model
from protocol.parameters import StudyParameters
from protocol.policy.site_policy import SitePolicy
from protocol.release import average_chunk
from protocol.wire.authentic import sign
from protocol.wire.messages import RuleName, RuleSpec, Study, StudyView, TrainingSpec
from tests.unit.client_agent import announced_rounds
from tests.unit.client_agent.benches import SITE, Bench, contributor_bench
from tests.unit.client_agent.federation import REQUESTER, ROSTER, keys

CPU = torch.device("cpu")
ROWS = 256
FEDERATION = breast_cancer_five_hospitals(0)
SITES = FEDERATION.contributors
SPEC = model_spec("mlp", (30,), (ROWS,), 2)
TRAP = Trap(30, ROWS, 2)
WHOLE = TrainingSpec(batch_size=10_000)
PARAMETERS = StudyParameters(dimension=TRAP.dimension, clip_norm=16.0, least_contributors=3)
STUDY = Study(
    name="unit",
    roster_digest=ROSTER.digest(),
    parameters=PARAMETERS,
    rule=RuleSpec(name=RuleName.FEDAVG),
    model=SPEC,
    training=WHOLE,
    rounds=3,
)
RECORDS = [site.train.X for site in SITES]
SPREAD = np.concatenate(RECORDS).std(axis=0).astype(np.float64)
CENTRE = np.concatenate(RECORDS).mean(axis=0).astype(np.float64)
PLANTED = TRAP.planted(CENTRE, SPREAD, seed=4)


def opened_average(model: np.ndarray) -> np.ndarray:
    """What every site opens: the average of four honest updates, clipped, encoded and added up as ever."""
    network, total = build_model(SPEC, 0), np.zeros(TRAP.dimension, dtype=np.uint64)
    for number, site in enumerate(SITES):
        load_vector(network, model)
        update = compute_update(network, Examples(site.train.X, site.train.y), WHOLE, round=1, seed=1, device=CPU)
        total += encode(clip(update, PARAMETERS.clip_norm)[0], PARAMETERS, bytes([number]) * 32)
    return average_chunk(to_signed(total), len(SITES), PARAMETERS)


def read_from(model: np.ndarray) -> int:
    """How many of the sites' records the requester holds within a tenth of a standard deviation in every feature."""
    candidates = TRAP.candidates(opened_average(model), 1 / PARAMETERS.scale)
    return records_read(candidates, RECORDS, SPREAD, within=0.1).records


def test_a_requester_that_steers_by_its_own_updates_reads_records_at_the_default_caps() -> None:
    """What caps on steps are worth: printed, and true as docs/threat_model.md has it.

    At the default caps 100 rounds are more than enough to build the trap out of version 0; only a path that is short
    of the model's own size keeps it away, and no useful study trains within that.
    """
    policy, first = SitePolicy(), first_model(STUDY)
    distance = float(np.linalg.norm(PLANTED.astype(np.float64) - first))
    read = {}
    for step in (0.0, 0.01, 0.05, 0.2, min(policy.largest_step, policy.largest_path / 100)):
        read[step] = read_from(steered(first, PLANTED, step, 100))
        print(f"steps of {step:g} over 100 rounds: {read[step]} records of {sum(map(len, RECORDS))} read")
    print(f"the trap is {distance:.1f} away from version 0")
    assert list(read.values())[-1] >= 10
    assert read[0.0] == 0


def hostile_welcome(
    bench: Bench, model: np.ndarray, version: int = 0, previous: PastRelease | None = None
) -> StudyView:
    """A model as the requester likes it, signed and sealed as ever, with any evidence of a release."""
    party = ROSTER.party(SITE)
    assert party is not None
    data, digest = model.tobytes(), bench.contributor.study_digest
    welcome = Welcome(
        study_digest=digest,
        site=SITE,
        model_version=version,
        checkpoint_digest=hashlib.sha256(data).hexdigest(),
        site_key="77" * 32,
        content_key="55" * 32,
        previous=previous,
    )
    for box in (server.mail for server in bench.servers.values()):
        signed = sign(welcome, REQUESTER, keys(REQUESTER).signing)
        box[f"welcome-{version}/{SITE}"] = seal_letter(signed, "welcome", digest, REQUESTER, party, version)
        box[f"checkpoint-{version}/every-site"] = seal_checkpoint(data, bytes.fromhex("55" * 32))
    return StudyView(
        study="unit",
        study_digest=digest,
        cursor=1,
        ready=(),
        mail=(f"welcome-{version}/{REQUESTER}", f"checkpoint-{version}/{REQUESTER}"),
    )


def test_a_genuine_release_lends_its_version_to_no_other_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other sites did make two rounds since; the requester sends its own model as what came of them."""
    with contributor_bench(tmp_path, announced_rounds.STUDY, announced_rounds.MODEL) as bench:
        own = announced_rounds.MODEL * 2
        react(bench, hostile_welcome(bench, own, 3, announced_rounds.released(7, 2)), monkeypatch)
        assert not np.array_equal(bench.contributor.require_model(), own), "the site took the requester's model"
        assert bench.contributor.state.model_version == 0
        (said,) = [event.text for event in bench.events if event.kind is EventKind.PROBLEM]
        assert said.startswith("model_behind: model 3 came with the word of 0 of the 2 contributors")


def react(bench: Bench, view: StudyView, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bench.contributor.watch, "both", lambda: (view, view))
    bench.contributor.react()


def test_trap_weights_read_records_out_of_the_average_of_four_sites() -> None:
    """The attack works wherever sites train on the planted model."""
    read = read_from(PLANTED)
    print(f"{read} of {sum(map(len, RECORDS))} records read from one average of four sites")
    assert read >= 10


def test_a_planted_first_model_reads_nobodys_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contributor_bench(tmp_path, STUDY, PLANTED) as bench:
        bench.contributor.save(model_version=None)
        react(bench, hostile_welcome(bench, PLANTED), monkeypatch)
        taken = bench.contributor.state.model_version is not None
        read = read_from(bench.contributor.require_model()) if taken else 0
        assert read == 0, f"the site took the requester's model, which reads {read} records"
        finished = bench.contributor.state.finished or ""
        assert finished.startswith("refused: first_model: the requester's welcome names the first model")
        said = [event.text for event in bench.events if event.kind is EventKind.FINISHED]
        assert said == [finished]
        sent = [topic for server in bench.servers.values() for topic in server.sent]
        assert sent == [f"refusal/{REQUESTER}"]
