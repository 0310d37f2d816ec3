"""Side B's signature under the agreed set of a round of ciphertexts, and studies that a server cannot serve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.ckks.scheme import MISSING
from protocol.errors import (
    BadSignature,
    ConflictingMessage,
    MalformedMessage,
    OutputGone,
    UnknownResource,
)
from protocol.messages.control import (
    NO_COMMITMENT,
    AgreedSet,
    CollectedContribution,
    RoundState,
    RuleName,
    RuleSpec,
    Signed,
    StudyProtection,
    require_signatures,
    sign,
)
from protocol.parameters import Needs
from protocol.rounds.agreement import check_said
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from servers.ckks import process as ckks_process
from servers.rounds.ciphertexts import countersign_agreed_set
from servers.rounds.release import served_output
from servers.store.records import RoundRecord
from servers.studies import _require_rule
from tests.kit.present import present
from tests.kit.round_messages import agreed_set, collected
from tests.unit.parties import REQUESTER, announcement, study
from tests.unit.servers.ending_rounds import FIVE, OPERATORS, PARTIES, ROSTER, server_on, store_with

A, B = (PARTIES.keys[name] for name in OPERATORS)
STUDY = study(ROSTER.digest()).model_copy(
    update={"rule": RuleSpec(name=RuleName.FEDAVG), "protection": StudyProtection.CKKS}
)
KEY = RoundKey(STUDY.digest(), 1, 1)
ANNOUNCED = announcement(STUDY.digest(), opens=Needs.NOTHING, listed=FIVE[1:], ckks_key_id="5c" * 16)


@pytest.fixture
def server(tmp_path: Path) -> Any:
    record = RoundRecord(KEY, RoundState.ANNOUNCED, sign(ANNOUNCED, REQUESTER, A.signing), 2e9)
    return server_on(Side.B, store_with(tmp_path, record, STUDY))


def now(server: Any) -> RoundRecord:
    return present(server.store.round(KEY))


def contribution(site: str, **changes: str) -> CollectedContribution:
    return collected(site, ANNOUNCED, **({"commitment_b": NO_COMMITMENT} | changes))


def agreed(sites: tuple[str, ...] = FIVE, **changes: Any) -> AgreedSet:
    return agreed_set(ANNOUNCED, sites, **({"contributions": tuple(map(contribution, sites))} | changes))


def asked(server: Any, message: AgreedSet, by: Any = A) -> Signed[AgreedSet]:
    return countersign_agreed_set(server, now(server), sign(message, by.name, by.signing))


def test_b_signs_one_set_a_round_and_the_same_again(server: Any) -> None:
    both = asked(server, agreed())
    assert require_signatures(both, ROSTER, (A.name, B.name)) == agreed()
    assert now(server).state is RoundState.MEASURED
    assert asked(server, agreed()) == both
    with pytest.raises(ConflictingMessage, match="another agreed set"):
        asked(server, agreed(FIVE[:-1]))


def test_b_signs_no_set_of_somebody_else(server: Any) -> None:
    with pytest.raises(BadSignature):
        asked(server, agreed(), by=B)
    assert now(server).agreed_set is None


@pytest.mark.parametrize(
    ("protection", "changes", "accepted"),
    [
        (StudyProtection.CKKS, {"ckks_key_id": "5c" * 16}, True),
        (StudyProtection.CKKS, {}, False),
        (StudyProtection.SHARES, {"ckks_key_id": "5c" * 16}, False),
        (StudyProtection.SHARES, {}, True),
    ],
)
def test_updates_are_encrypted_exactly_where_the_study_says_so(
    protection: StudyProtection, changes: dict[str, Any], accepted: bool
) -> None:
    of = STUDY.model_copy(update={"protection": protection})
    message = announcement(of.digest(), opens=Needs.NOTHING, **changes)
    if accepted:
        check_said(message, 1, of, of.digest(), ROSTER, None, 1_999_999_999.0)
        return
    with pytest.raises(MalformedMessage, match="exactly under 'ckks'"):
        check_said(message, 1, of, of.digest(), ROSTER, None, 1_999_999_999.0)


def test_without_tenseal_side_a_refuses_the_study_and_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ckks_process, "find_spec", lambda name: None)
    with pytest.raises(MalformedMessage) as refused:
        _require_rule(SimpleNamespace(roster=ROSTER, side=Side.A), STUDY)  # type: ignore[arg-type]
    assert refused.value.detail == MISSING
    _require_rule(SimpleNamespace(roster=ROSTER, side=Side.B), STUDY)  # type: ignore[arg-type]


def test_an_old_sum_is_no_longer_there(server: Any) -> None:
    both: Any = SimpleNamespace(signatures=("a", "b"))
    chosen: Any = SimpleNamespace(message=SimpleNamespace(digest=lambda: "ab" * 32))
    released = replace(now(server), state=RoundState.RELEASED, release_set=chosen, sum_release=both)
    server.key_id_of = lambda site: "ab" * 16
    with pytest.raises(UnknownResource, match="at side A alone"):
        served_output(server, server.store.study(KEY.study), released, FIVE[1])
    server.side = Side.A
    with pytest.raises(OutputGone, match="no longer kept"):
        served_output(server, server.store.study(KEY.study), released, FIVE[1])
