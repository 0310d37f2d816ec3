"""A whole study behind a proxy that opens TLS: what sites and servers say to each other is read by nobody else.

Real servers and agents in memory; every request and answer is read, those between the servers too. Of one round that
scripts walk through, attack ``proxy-reads-a-round`` does the same.
"""

from __future__ import annotations

import re
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import numpy as np
import pytest

from client_agent.learning.data import DataNames
from client_agent.site.events import EventKind, RoundEnd
from harness.attack.proxy_attacks import all_that_passes, fields_of
from harness.engine.parties import OPERATOR_NAMES
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import Odd, light_learner, with_odd
from harness.federation.processes import FederationSpec
from protocol.errors import Clause, ErrorCode
from protocol.messages import peer
from protocol.messages.control import (
    Message,
    PauseCause,
    Purpose,
    RoundState,
    RuleName,
    ShareKind,
    StudyProtection,
    StudyState,
)
from protocol.messages.letter import LetterKind
from protocol.messages.purpose import EndCause, OutcomeCause
from protocol.parameters import Needs
from protocol.policy.site_policy import SitePolicy
from tests.integration.agents import EROSION, REQUESTER, finished, rounds_of, spec, study_for

DECLINES, BREAKS = "hospital-strict", "hospital-breaking"
CONTRIBUTORS = ("hospital-first", "hospital-second", "hospital-third", BREAKS, DECLINES)
STUDY = "infarction-study"
FEATURES = tuple(f"{name}-value" for name in ("troponin", "creatinine", "ejection", "pressure", "cholesterol"))
CLASSES = ("survived-infarction", "died-of-infarction")
PUBLIC_HEADERS = re.compile(
    rb'{"length":12,("recipient":"[0-9a-f]{32}",)?"release_digest":"[0-9a-f]{64}"'
    rb'(,"share_kind":"(seed|vector)","side":"[ab]","version":"moiety/2")?}'
)
"""Types of outputs and masked sums, which are sealed already and made while they are sent."""
WORDS: tuple[type[StrEnum], ...] = (
    *(Clause, ErrorCode, LetterKind, EndCause, OutcomeCause, PauseCause, Purpose, RoundState, RuleName, ShareKind),
    *(StudyProtection, StudyState, Needs),
)


class BrokenInRound1(Odd):
    """Nothing to contribute: the site declines, and tells the requester alone why."""

    def update(self, model: np.ndarray, round_number: int) -> np.ndarray:
        update = super().update(model, round_number)
        if round_number == 1:
            update[-1] = np.nan
        return update


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The bytes that passed in two rounds, in which one site refuses and another declines."""
    policies = dict.fromkeys((REQUESTER, *CONTRIBUTORS), SitePolicy(least_isolation=0.0))
    policies[DECLINES] = SitePolicy(least_isolation=0.0, least_contributors=5)
    of = spec(policies)
    sites = tuple(replace(site, data=replace(site.data, names=DataNames(FEATURES, CLASSES))) for site in of.sites)
    with all_that_passes() as passed:
        run(replace(of, sites=sites), tmp_path_factory.mktemp("proxied"))
    return passed


def run(of: FederationSpec, folder: Path) -> None:
    with InMemoryFederation(of, folder, with_odd({BREAKS: BrokenInRound1}, light_learner)) as federation:
        study = study_for(federation, STUDY, EROSION, 2, 60.0)
        with federation.agents():
            federation.hand_in(study.model_copy(update={"model": study.model.named(FEATURES, CLASSES)}))
            federation.until("the end", finished(federation, STUDY, REQUESTER, *CONTRIBUTORS[:4]))
        rounds = rounds_of(federation, REQUESTER, STUDY)
        assert [record.state for record in rounds] == [RoundEnd.RELEASED] * 2
        assert BREAKS in rounds[0].declined
        refused = federation.texts(EventKind.DECLINED, DECLINES)
        assert any("least" in text or "demanded" in text for text in refused)


def test_the_whole_study_passed_the_proxy(recorded: list[bytes]) -> None:
    """Its own words are there, so that what is not found below is not missed."""
    targets = [b"/v1/" + one.partition(b"/v1/")[2] for one in recorded if one.startswith(b"https://")]
    assert set(targets) == {b"/v1/sealed", b"/v1/peer/sealed"}
    assert targets.count(b"/v1/sealed") > 50
    assert targets.count(b"/v1/peer/sealed") > 10
    read = b"\n".join(recorded)
    assert len(read) > 200_000
    for word in (b"application/vnd.moiety.answer", b"sealed-head-digest", b"moiety/2", b"keyid="):
        assert word in read, word


def test_a_whole_study_is_read_by_no_proxy(recorded: list[bytes]) -> None:
    """No name of study, sites, operators, features, classes or rule; no cause, clause, topic, nor a message's key."""
    read, public = PUBLIC_HEADERS.subn(b"", b"\n".join(recorded))
    assert public >= 2, "masked sums of two rounds; outputs as short as these are under their sessions' keys"
    names = (STUDY, REQUESTER, *CONTRIBUTORS, *OPERATOR_NAMES.values(), *FEATURES, *CLASSES)
    assert peer.LockRequest in Message.__subclasses__()
    keys = sorted({f'"{key}":' for key in fields_of(Message)})
    values = sorted({f'"{word.value}"' for words in WORDS for word in words})
    topics = [f"{kind.value}-{number}" for kind in LetterKind for number in range(3)]
    assert len(keys) > 100
    found = [word for word in (*names, *keys, *values, *topics, "studies", "infarction") if word.encode() in read]
    assert found == []
