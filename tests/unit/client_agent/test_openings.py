"""Queries out; the sites that stay in the sum, the signed set, and the evidence that a requester refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from client_agent.requester.openings import Openings, query_vector, seal_queries
from client_agent.requester.study import RoundPlan
from client_agent.site.journal import StudyJournal
from harness.attack.signed_client import opened as opened_body
from host.randomness import SystemRandomness
from protocol.arithmetic.fixed_point import encode
from protocol.errors import BadSignature, ProtocolViolation, TranscriptMismatch, UnknownResource
from protocol.messages.bodies import read_query
from protocol.messages.control import (
    ChallengeTranscript,
    QueryHeader,
    RoundState,
    RoundView,
    ShareKind,
    Signed,
    require_signatures,
    sign,
)
from protocol.mpc.measurement import OpeningShare, distance_query, open_all
from protocol.mpc.sketch import sketch_vector
from protocol.parameters import RANGE_PROJECTIONS, StudyParameters
from protocol.rounds.agreement import transcript
from protocol.rounds.judgement import RequesterFacts
from protocol.rules.interface import SiteFacts
from protocol.rules.registry import rule_for
from protocol.sharing import Side, round_seed_side
from tests.kit.present import present
from tests.unit.client_agent.federation import (
    CONTRIBUTORS,
    DIGEST,
    PARAMETERS,
    REQUESTER,
    ROSTER,
    announcement,
    keys,
    operator_keys,
    release,
    signed_by_both,
    study,
    weight_list,
)

WEIGHTS = weight_list()
ANNOUNCED = announcement(WEIGHTS)
AGREED = release().agreed_set.message


@pytest.fixture
def turn(tmp_path: Path) -> Openings:
    context = SimpleNamespace(site=REQUESTER, keys=keys(REQUESTER), roster=ROSTER)
    rule = rule_for(study().rule, batch_size=32, grid=PARAMETERS.weight_grid)
    state = rule.init(tuple(SiteFacts(name=name, samples=40) for name in CONTRIBUTORS))
    owner = SimpleNamespace(
        context=context,
        study=study(),
        rule=rule,
        progress=SimpleNamespace(rule_state=state),
        study_digest=ANNOUNCED.study_digest,
        journal=StudyJournal(tmp_path, "unit"),
        signed=lambda message: sign(message, REQUESTER, keys(REQUESTER).signing),
    )
    plan = RoundPlan(
        announcement=sign(ANNOUNCED, REQUESTER, keys(REQUESTER).signing), weight_list=WEIGHTS, previous=None
    )
    return Openings(owner, plan)  # type: ignore[arg-type]


def shares(
    failing: tuple[str, ...] = (), distances: dict[str, float] | None = None
) -> dict[Side, tuple[OpeningShare, ...]]:
    """Openings in which ``failing`` sites fail the range check; distances are of the updates, weights are 1/2."""
    a, b = [], []
    for site in AGREED.sites:
        ranges = np.zeros(RANGE_PROJECTIONS, dtype=np.uint64)
        ranges[3] = site in failing
        length = (distances or {}).get(site, 1.0)
        squared = [] if site == REQUESTER else [round((length / 2 * PARAMETERS.scale) ** 2)]
        a.append(OpeningShare(site, ranges, np.array(squared, dtype=np.uint64)))
        nothing = np.zeros(len(squared), dtype=np.uint64)
        b.append(OpeningShare(site, np.zeros(RANGE_PROJECTIONS, dtype=np.uint64), nothing))
    return {Side.A: tuple(a), Side.B: tuple(b)}


def judged(turn: Openings, opened: dict[Side, tuple[OpeningShare, ...]]):
    sites = open_all(opened[Side.A], opened[Side.B], turn._numerators(AGREED), PARAMETERS)
    return turn.judged(AGREED, sites, 1, RequesterFacts(REQUESTER, 1.0))


def test_everybody_stays(turn: Openings) -> None:
    opened = judged(turn, shares())
    message = require_signatures(present(opened.release_set), ROSTER, (REQUESTER,))
    assert (message.sites, message.failed_check) == (AGREED.sites, ())
    assert message.agreed_set_digest == AGREED.digest()
    # (scale / 2)^2 is a whole number, so nothing is rounded
    assert dict(opened.measured.distances) == dict.fromkeys(CONTRIBUTORS, 1.0)


def test_too_few_left_means_no_release(turn: Openings) -> None:
    opened = judged(turn, shares(failing=("c2",)))
    assert (opened.left_out, opened.release_set) == (("c2",), None)
    assert judged(turn, shares(failing=(REQUESTER,))).release_set is None


def test_a_site_beyond_the_list_breaks_the_protocol(turn: Openings) -> None:
    assert turn.numerator(REQUESTER) == WEIGHTS.grid
    with pytest.raises(ProtocolViolation, match="'c9'"):
        turn.numerator("c9")


def stated(nonce: int = 1) -> Signed[ChallengeTranscript]:
    return signed_by_both(transcript(1, AGREED.digest(), bytes([nonce]) * 32, bytes(32)))


def view(**changes: object) -> RoundView:
    fields = {
        "round": 1,
        "attempt": 1,
        "state": RoundState.LOCKED,
        "announcement": sign(ANNOUNCED, REQUESTER, keys(REQUESTER).signing),
        "agreed_set": signed_by_both(AGREED),
        "transcript": stated(),
    }
    return RoundView(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_sound_transcript_gives_the_challenge(turn: Openings) -> None:
    agreed, challenge, digest = turn.transcript(view(), view())
    assert agreed == AGREED
    assert challenge.hex() == stated().message.challenge
    assert digest == stated().message.digest()


def test_evidence_that_does_not_hold(turn: Openings) -> None:
    one_signature = stated().model_copy(update={"signatures": stated().signatures[:1]})
    unsigned_set = signed_by_both(AGREED).model_copy(update={"signatures": ()})
    elsewhere = signed_by_both(AGREED.model_copy(update={"announcement_digest": "00" * 32}))
    chosen_by_servers = signed_by_both(stated().message.model_copy(update={"challenge": "11" * 32}))
    cases = [
        (view(transcript=one_signature), view(), BadSignature),
        (view(agreed_set=unsigned_set), view(), BadSignature),
        (view(), view(transcript=stated(2)), TranscriptMismatch),
        (view(agreed_set=elsewhere), view(agreed_set=elsewhere), TranscriptMismatch),
        (view(transcript=chosen_by_servers), view(transcript=chosen_by_servers), TranscriptMismatch),
        (view(), view(agreed_set=None), UnknownResource),
    ]
    for at_a, at_b, error in cases:
        with pytest.raises(error):
            turn.transcript(at_a, at_b)


# --- queries ----------------------------------------------------------------------------------------------------------

SKETCHED = StudyParameters(dimension=5000, clip_norm=4.0, least_contributors=3)
CHALLENGE = bytes(range(32))


def own_update(parameters: StudyParameters) -> np.ndarray:
    values = np.random.default_rng(2).normal(size=parameters.dimension) / 100
    return encode(values, parameters, bytes(32))


@pytest.mark.parametrize("parameters", [PARAMETERS, SKETCHED])
@pytest.mark.parametrize("round_number", [1, 2])
def test_the_servers_shares_make_the_weighted_sketches(parameters: StudyParameters, round_number: int) -> None:
    x = own_update(parameters)
    numerators = (32, 7, 16)
    queries = query_vector(CHALLENGE, lambda start, stop: x[start:stop], numerators, parameters)
    sealed = seal_queries(queries, CONTRIBUTORS, DIGEST, round_number, ROSTER, parameters, SystemRandomness(), "label")
    total = np.zeros(queries.size, dtype=np.uint64)
    kinds = {}
    for side in Side:
        header, plain = opened_body(sealed[side], operator_keys(side).sealing, QueryHeader)
        assert (header.side, header.targets, header.transcript_digest) == (side, CONTRIBUTORS, DIGEST)
        assert header.length == parameters.sketched_length
        kinds[side] = header.share_kind
        total += np.concatenate(list(read_query(header, plain).values()))
    assert kinds[round_seed_side(round_number)] is ShareKind.SEED
    assert kinds[round_seed_side(round_number).other] is ShareKind.VECTOR
    sketch = sketch_vector(CHALLENGE, x, parameters)
    expected = np.concatenate([distance_query(sketch, n, parameters.weight_grid) for n in numerators])
    np.testing.assert_array_equal(total, expected)


def test_no_target_no_query() -> None:
    assert query_vector(CHALLENGE, lambda start, stop: np.zeros(stop - start, np.uint64), (), PARAMETERS).size == 0
