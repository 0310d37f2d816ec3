"""Wrong ciphertexts at two servers in memory: a clear refusal, and the round goes on with the others."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import numpy as np
import pytest

from harness.attack.forgeries import Parts, with_header
from harness.attack.scripted_requester import ScriptedRequester, make_study
from harness.attack.signed_client import opened
from host.files import MemoryFile
from protocol.arithmetic.kernels import Scaling
from protocol.channel.commitment import commitment_to
from protocol.ckks.ciphertext import HEADER_BYTES, CkksParameters, Kind
from protocol.ckks.scheme import Decryptor, Encryptor, Scheme, SecretKey
from protocol.ckks.update import SiteChecks, SumChecks, average, body_header, contribution
from protocol.messages import paths
from protocol.messages.bodies import ciphertext_parts
from protocol.messages.control import (
    Announcement,
    OutputHeader,
    Receipt,
    RoundState,
    RuleName,
    RuleSpec,
    ShareKind,
    Signed,
    StudyProtection,
    require_signatures,
)
from protocol.parameters import Needs
from protocol.sharing import Side
from tests.integration.test_server_refusals import problem
from tests.kit.processes import Federation, servers_in_memory

pytest.importorskip("tenseal")
REQUESTER = "hospital-0"
CONTRIBUTORS = ("hospital-1", "hospital-2", "hospital-3", "hospital-4")
EXTRA = "hospital-9"
D = 1500
"""Two ciphertexts an update."""
SEED = bytes(range(32))
CLOSES_IN_S = 20
"""Enough for the worker's start and a few uploads on a busy machine."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with servers_in_memory(tmp_path_factory.mktemp("ckks"), [REQUESTER, *CONTRIBUTORS, EXTRA]) as running:
        yield running


@dataclass
class Encrypting:
    """All sites of a study under CKKS, with the key that they share."""

    sites: ScriptedRequester
    key: SecretKey

    def announcement(self, number: int, closes_in_s: float = 500.0) -> Announcement:
        made = self.sites.announcement(number, listed=CONTRIBUTORS, opens=Needs.NOTHING, closes_in_s=closes_in_s)
        return made.model_copy(update={"ckks_key_id": self.key.id.hex()})

    def body(self, update: np.ndarray, of: tuple[str, str] = ("a0" * 32, EXTRA)) -> bytes:
        """An update's ciphertexts; on ``of``, announcement's digest and site, the check values depend."""
        checks = SiteChecks(self.key, *of)
        header = body_header(Kind.CONTRIBUTION, self.key, update.size)
        return b"".join(contribution(Encryptor(self.key, MemoryFile()), header, update, Scaling(), 1.0, checks))

    def sealed(self, site: str, announcement: Announcement, body: bytes, **changes: object) -> bytes:
        salt, content_key = secrets.token_bytes(32), secrets.token_bytes(32)
        part = ciphertext_parts(announcement, 1, site, D + 1)[Side.A]
        header = part.header({Side.A: commitment_to(body, salt, content_key)}).canonical()
        recipient = self.sites.federation.roster.operator_a.sealing
        return with_header(Parts(header, body, recipient, content_key, salt), **changes).sealed()

    def put(self, site: str, sealed: bytes, number: int = 1, side: Side = Side.A) -> httpx.Response:
        return self.sites.clients[site].send(side, "PUT", self.sites.contribution_path(number), sealed)


def encrypting(federation: Federation, name: str) -> Encrypting:
    rule = RuleSpec(name=RuleName.FEDAVG)
    sites = ScriptedRequester(federation, make_study(federation, D, name, rule=rule, protection=StudyProtection.CKKS))
    sites.create()
    return Encrypting(sites, Scheme(CkksParameters()).secret_key(SEED, sites.study.digest()))


@pytest.fixture(scope="module")
def study(federation: Federation) -> Iterator[Encrypting]:
    made = encrypting(federation, "refusing")
    yield made
    made.sites.close()


@pytest.fixture(scope="module")
def first_round(study: Encrypting) -> Announcement:
    announcement = study.announcement(1)
    study.sites.announce(announcement)
    return announcement


def update(seed: int, size: int = D) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=size)
    return (drawn / np.linalg.norm(drawn)).astype(np.float32)


def garbled(body: bytes) -> bytes:
    """The body with coefficients that no ciphertext has; its header is sound."""
    return body[: HEADER_BYTES + 64] + b"\xff" * (len(body) - HEADER_BYTES - 64)


def lengthened(body: bytes) -> bytes:
    return body + b"\0"


@pytest.mark.parametrize(
    ("site", "sender", "side", "changed", "status", "code", "says"),
    [
        ("hospital-1", "hospital-1", Side.A, garbled, 400, "malformed_message", "not a ciphertext of this study"),
        ("hospital-1", "hospital-1", Side.A, lengthened, 400, "malformed_message", "after its last chunk"),
        (EXTRA, EXTRA, Side.A, bytes, 403, "not_listed", "is not listed for round 1"),
        ("hospital-2", "hospital-1", Side.A, bytes, 403, "not_listed", "names 'hospital-2'"),
        ("hospital-1", "hospital-1", Side.B, bytes, 400, "malformed_message", "go to side A alone"),
    ],
    ids=["garbled", "too-long", "unlisted", "another-name", "side-b"],
)
def test_a_refused_ciphertext(
    study: Encrypting,
    first_round: Announcement,
    site: str,
    sender: str,
    side: Side,
    changed: Callable[[bytes], bytes],
    status: int,
    code: str,
    says: str,
) -> None:
    """One refusal of each part of a server. The unit tests of each part and the attack ``ciphertexts-...`` try all."""
    sealed = study.sealed(site, first_round, changed(study.body(update(1))))
    assert says in problem(study.put(sender, sealed, side=side), status, code)


def test_a_share_instead(study: Encrypting, first_round: Announcement) -> None:
    sealed = study.sealed("hospital-1", first_round, bytes(8 * D), share_kind=ShareKind.VECTOR, length=D)
    detail = problem(study.put("hospital-1", sealed), 400, "malformed_message")
    assert "sends this server a ciphertext" in detail


def test_twice_the_same_has_one_receipt_and_another_one_is_refused(
    study: Encrypting, first_round: Announcement
) -> None:
    """The first thing that this site sends and that is not refused."""
    sealed = study.sealed("hospital-4", first_round, study.body(update(4)))
    first, again = (study.put("hospital-4", sealed) for _ in range(2))
    assert first.is_success
    assert first.content == again.content
    other = study.sealed("hospital-4", first_round, study.body(update(4)))
    problem(study.put("hospital-4", other), 409, "conflicting_message")


# --- and the others ---------------------------------------------------------------------------------------------------


def test_the_round_goes_on_with_the_others(federation: Federation) -> None:
    study = encrypting(federation, "going-on")
    try:
        honest = (REQUESTER, *CONTRIBUTORS[:3])
        updates = {site: update(place) for place, site in enumerate(honest)}
        announcement = study.announcement(1, closes_in_s=CLOSES_IN_S)
        bodies = {site: study.body(updates[site], of=(announcement.digest(), site)) for site in honest}
        study.sites.announce(announcement)
        for site, body in (*bodies.items(), ("hospital-4", garbled(bodies[REQUESTER]))):
            response = study.put(site, study.sealed(site, announcement, body))
            assert response.is_success == (site in honest)
            if site in honest:
                receipt = Signed[Receipt].parse(response.content)
                require_signatures(receipt, federation.roster, [federation.roster.operator_a.name])
        for side in Side:
            current = study.sites.wait_round(side, 1, RoundState.MEASURED)
            assert current.agreed_set is not None
            assert current.agreed_set.message.sites == honest
            assert current.transcript is None  # no challenge: there is nothing to measure
            names = (federation.roster.operator_a.name, federation.roster.operator_b.name)
            require_signatures(current.agreed_set, federation.roster, names)
        study.sites.release(current)
        study.sites.released(1)
        assert_average(study, updates, current.announcement.message.digest())
        detail = problem(
            study.sites.me.send(Side.B, "GET", study.sites.path(paths.OUTPUT, round=1)), 404, "unknown_resource"
        )
        assert "at side A alone" in detail
    finally:
        study.sites.close()


def assert_average(study: Encrypting, updates: dict[str, np.ndarray], announcement_digest: str) -> None:
    """Every site gets the same sum, and decrypts what plain arithmetic gives, within 8 standard deviations a value.

    A decrypted value of the sum of n is off by s sqrt(n), as is the sum of the weights, here n; float32 rounds once.
    """
    bodies = set()
    for site in updates:
        sealed = study.sites.clients[site].ok(Side.A, "GET", study.sites.path(paths.OUTPUT, round=1))
        header, content = opened(sealed, study.sites.clients[site].keys.sealing, OutputHeader)
        bodies.add(content)
        assert (header.share_kind, header.length) == (ShareKind.CIPHERTEXT, D + 1)
    (body,) = bodies
    count = len(updates)
    checks = SumChecks(study.key, announcement_digest, list(updates))
    found = average([body], Decryptor(study.key, MemoryFile()), body_header(Kind.SUM, study.key, D), checks, 1.0, 1.0)
    expected = np.mean([one.astype(np.float64) for one in updates.values()], axis=0)
    off = 8 * CkksParameters().value_deviation * np.sqrt(count)
    allowed = (off + np.abs(expected) * off) / (count - off) + 2.0**-24 * np.abs(expected)
    assert np.all(np.abs(found - expected) <= allowed)
    assert np.linalg.norm(found - expected) > 0
