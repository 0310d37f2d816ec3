"""A whole study behind a proxy that opens TLS: what sites and servers say to each other is read by nobody else.

Real servers and agents; the proxy stands before both servers, so that server A's calls to B pass it too. It takes as
long as its deadline, so it runs in ``make soak``; of one round in memory every run has attack ``proxy-reads-a-round``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import numpy as np
import pytest

from client_agent.learning.data import DataNames
from client_agent.site.events import EventKind, RoundEnd
from harness.engine.parties import OPERATOR_NAMES
from harness.federation.learners import Odd, torch_learner, with_odd
from harness.federation.processes import FederationSpec, SiteSpec
from protocol.errors import Clause, ErrorCode
from protocol.messages import peer
from protocol.messages.control import (
    Message,
    PauseCause,
    Purpose,
    RoundState,
    RuleName,
    ShareKind,
    Study,
    StudyProtection,
    StudyState,
)
from protocol.messages.letter import LetterKind
from protocol.messages.purpose import EndCause, OutcomeCause
from protocol.parameters import Needs
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from tests.adversarial.recording_proxy import proxies
from tests.integration.agents import EROSION, finished, rounds_of, site_data, study_for, wait_for
from tests.kit.processes import Federation, running_servers
from tests.ports import HOST, free_ports

pytestmark = pytest.mark.soak

REQUESTER, DECLINES, BREAKS = "hospital-requesting", "hospital-strict", "hospital-breaking"
CONTRIBUTORS = ("hospital-first", "hospital-second", "hospital-third", BREAKS, DECLINES)
STUDY = "infarction-study"
FEATURES = tuple(f"{name}-value" for name in ("troponin", "creatinine", "ejection", "pressure", "cholesterol"))
CLASSES = ("survived-infarction", "died-of-infarction")
NAMES = DataNames(FEATURES, CLASSES)
ANSWERED_IN_THE_OPEN = b'{"status":"ok"}'
"""/healthz, which server A asks B for before it calls itself ready."""
PUBLIC_HEADERS = re.compile(
    rb'{"length":12,("recipient":"[0-9a-f]{32}",)?"release_digest":"[0-9a-f]{64}"'
    rb'(,"share_kind":"(seed|vector)","side":"[ab]","version":"moiety/2")?}'
)
"""Types of outputs and masked sums, which are sealed already and made while they are sent."""
TARGETS = {b"POST /v1/sealed", b"POST /v1/peer/sealed", b"GET /healthz"}
WORDS: tuple[type[StrEnum], ...] = (
    *(Clause, ErrorCode, LetterKind, EndCause, OutcomeCause, PauseCause, Purpose, RoundState, RuleName, ShareKind),
    *(StudyProtection, StudyState, Needs),
)


DEADLINE_S = 15.0
"""The round in which a site declines lasts as long: servers do not know that it did."""


class BrokenInRound1(Odd):
    """Nothing to contribute: the site declines, and tells the requester alone why."""

    def update(self, model: np.ndarray, round_number: int) -> np.ndarray:
        update = super().update(model, round_number)
        if round_number == 1:
            update[-1] = np.nan
        return update


def named(federation: Federation) -> Study:
    study = study_for(federation, STUDY, EROSION, 2, DEADLINE_S)
    return study.model_copy(update={"model": study.model.named(FEATURES, CLASSES)})


def federation_of(folder: Path) -> Federation:
    """Public addresses are the proxies'; the servers listen behind them. One site's policy refuses the study's list."""
    policies = {DECLINES: SitePolicy(least_isolation=0.0, least_contributors=5)}
    sites = tuple(
        SiteSpec(name, replace(site_data(i), names=NAMES), policies.get(name, SitePolicy(least_isolation=0.0)))
        for i, name in enumerate((REQUESTER, *CONTRIBUTORS))
    )
    spec = FederationSpec("hospitals", REQUESTER, sites, ports=free_ports(), bootstrap_samples=0)
    return Federation(folder, spec, with_odd({BREAKS: BrokenInRound1}, torch_learner))


def behind(federation: Federation) -> list[tuple[int, int, Path, Path]]:
    """Move both servers to other ports than their public addresses say."""
    routes = []
    for side, port in zip(Side, free_ports(), strict=True):
        config = federation.config(OPERATOR_NAMES[side])
        public = int(federation.url(side).rpartition(":")[2])
        text = config.read_text()
        moved = text.replace(f"\nport = {public}\n", f"\nport = {port}\n")
        assert moved != text
        config.write_text(moved)
        routes.append((public, port, config.with_name("tls-certificate.pem"), config.with_name("tls-key.pem")))
    return routes


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes that the proxies read of two rounds, in which one site refuses and another declines."""
    federation = federation_of(tmp_path_factory.mktemp("proxied"))
    with proxies(federation.ca_file, HOST, behind(federation)) as recording, running_servers(federation):
        run(federation)
    return recording.whole()


def run(federation: Federation) -> None:
    federation.start_agents()
    federation.hand_in(named(federation))
    wait_for("the end", finished(federation, STUDY, REQUESTER, *CONTRIBUTORS[:4]), tails=federation.site_tails)
    rounds = rounds_of(federation, REQUESTER, STUDY)
    assert [record.state for record in rounds] == [RoundEnd.RELEASED] * 2
    assert BREAKS in rounds[0].declined
    assert any("least" in text or "demanded" in text for text in federation.texts(EventKind.DECLINED, DECLINES))


def keys_of(message: type[Message]) -> Iterator[str]:
    """The keys of this control message and of all derived kinds."""
    yield from message.model_fields
    for kind in message.__subclasses__():
        yield from keys_of(kind)


def test_the_whole_study_passed_the_proxy(recorded: bytes) -> None:
    """Its own words are there, so that what is not found below is not missed."""
    asked = re.findall(rb"((?:GET|PUT|POST|HEAD|DELETE) /\S*) HTTP/1\.1\r\n", recorded)
    assert set(asked) == TARGETS
    assert asked.count(b"POST /v1/sealed") > 50
    assert asked.count(b"POST /v1/peer/sealed") > 10
    assert len(recorded) > 200_000
    for word in (b"application/vnd.moiety.answer", b"sealed-head-digest", b"moiety/2", b"HTTP/1.1 200", b"keyid="):
        assert word in recorded, word


def test_a_whole_study_is_read_by_no_proxy(recorded: bytes) -> None:
    """No name of study, sites, operators, features, classes or rule; no cause, clause, topic, nor a message's key."""
    read, public = PUBLIC_HEADERS.subn(b"", recorded.replace(ANSWERED_IN_THE_OPEN, b""))
    assert public >= 2, "masked sums of two rounds; outputs as short as these are under their sessions' keys"
    names = (STUDY, "hospitals", REQUESTER, *CONTRIBUTORS, *OPERATOR_NAMES.values(), *FEATURES, *CLASSES)
    assert peer.LockRequest in Message.__subclasses__()
    keys = sorted({f'"{key}":' for key in keys_of(Message)})
    values = sorted({f'"{word.value}"' for words in WORDS for word in words})
    topics = [f"{kind.value}-{number}" for kind in LetterKind for number in range(3)]
    assert len(keys) > 100
    found = [word for word in (*names, *keys, *values, *topics, "studies", "infarction") if word.encode() in read]
    assert found == []
