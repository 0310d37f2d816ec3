"""Ciphertexts of every wrong kind over real HTTPS: a clear refusal, and the round goes on with the others."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import numpy as np
import pytest

from harness.adversaries.forgeries import Parts, with_header
from harness.adversaries.scripted_requester import ScriptedSites, make_study
from harness.adversaries.signed_client import opened
from host.files import MemoryFile
from protocol.arithmetic.kernels import Scaling
from protocol.channel.commitment import commitment_to
from protocol.channel.sealing import sealed_small_length
from protocol.ckks.ciphertext import HEADER_BYTES, CkksParameters, Kind, body_bytes
from protocol.ckks.scheme import Decryptor, Encryptor, Scheme, SecretKey
from protocol.ckks.update import SiteChecks, SumChecks, average, body_header, contribution
from protocol.messages import paths
from protocol.messages.contribution import ciphertext_parts
from protocol.messages.control import (
    Announcement,
    OutcomeCause,
    OutputHeader,
    Receipt,
    RoundState,
    RuleName,
    RuleSpec,
    ShareKind,
    Signed,
    StudyProtection,
    require_signatures,
    sign,
)
from protocol.messages.letter import NOTICE_BYTES
from protocol.parameters import Needs
from protocol.sharing import Side
from tests.integration.test_server_refusals import problem
from tests.kit.processes import Federation, start_servers

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
    with start_servers(tmp_path_factory.mktemp("ckks"), [REQUESTER, *CONTRIBUTORS, EXTRA]) as running:
        yield running


@dataclass
class Encrypting:
    """All sites of a study under CKKS, with the key that they share."""

    sites: ScriptedSites
    key: SecretKey

    def announcement(self, number: int, closes_in_s: float = 500.0) -> Announcement:
        made = self.sites.announcement(number, listed=CONTRIBUTORS, opens=Needs.NOTHING, closes_in_s=closes_in_s)
        return made.model_copy(update={"ckks_key_id": self.key.id.hex()})

    def body(self, update: np.ndarray, key: SecretKey | None = None, of: tuple[str, str] = ("a0" * 32, EXTRA)) -> bytes:
        """An update's ciphertexts; on ``of``, announcement's digest and site, the check values depend."""
        under = key or self.key
        checks = SiteChecks(under, *of)
        header = body_header(Kind.CONTRIBUTION, under, update.size)
        return b"".join(contribution(Encryptor(under, MemoryFile()), header, update, Scaling(), 1.0, checks))

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
    sites = ScriptedSites(federation, make_study(federation, D, name, rule=rule, protection=StudyProtection.CKKS))
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


# --- what is no ciphertext of this study ------------------------------------------------------------------------------


def test_a_ciphertext_of_another_context(study: Encrypting, first_round: Announcement) -> None:
    other = Scheme(CkksParameters(scale_bits=30)).secret_key(SEED, study.sites.study.digest())
    sealed = study.sealed("hospital-1", first_round, study.body(update(1), other))
    assert "of another context" in problem(study.put("hospital-1", sealed), 400, "malformed_message")


def test_a_ciphertext_under_another_key(study: Encrypting, first_round: Announcement) -> None:
    other = study.key.scheme.secret_key(bytes(32), study.sites.study.digest())
    sealed = study.sealed("hospital-1", first_round, study.body(update(1), other))
    assert "under another key" in problem(study.put("hospital-1", sealed), 400, "malformed_message")


@pytest.mark.parametrize("size", [D - 600, D - 1, D + 1, D + 2000])
def test_a_ciphertext_of_another_length(study: Encrypting, first_round: Announcement, size: int) -> None:
    body = study.body(update(1, size))
    detail = problem(study.put("hospital-1", study.sealed("hospital-1", first_round, body)), 400, "malformed_message")
    assert f"a body of {size + 1} values, the study's updates have {D + 1}" in detail
    stated = study.sealed("hospital-1", first_round, body, length=size + 1)
    assert f"ciphertext of length {D + 1}" in problem(study.put("hospital-1", stated), 400, "malformed_message")


@pytest.mark.parametrize("kept", [0, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 700, -1])
def test_a_truncated_ciphertext(study: Encrypting, first_round: Announcement, kept: int) -> None:
    sealed = study.sealed("hospital-1", first_round, study.body(update(1))[:kept])
    problem(study.put("hospital-1", sealed), 400, "malformed_message")


def test_a_truncated_seal(study: Encrypting, first_round: Announcement) -> None:
    sealed = study.sealed("hospital-1", first_round, study.body(update(1)))
    problem(study.put("hospital-1", sealed[:-1]), 400, "broken_seal")


def test_a_ciphertext_with_something_behind_it(study: Encrypting, first_round: Announcement) -> None:
    sealed = study.sealed("hospital-1", first_round, study.body(update(1)) + b"\0")
    assert "goes on after its last chunk" in problem(study.put("hospital-1", sealed), 400, "malformed_message")


def test_what_is_not_a_ciphertext_at_all(study: Encrypting, first_round: Announcement) -> None:
    length = body_bytes(CkksParameters(), Kind.CONTRIBUTION, D + 1)
    sealed = study.sealed("hospital-1", first_round, b"not a ciphertext".ljust(length, b"!"))
    assert "not a CKKS contribution" in problem(study.put("hospital-1", sealed), 400, "malformed_message")


def test_coefficients_that_no_ciphertext_has(study: Encrypting, first_round: Announcement) -> None:
    body = bytearray(study.body(update(1)))
    body[HEADER_BYTES + 64 :] = b"\xff" * (len(body) - HEADER_BYTES - 64)
    sealed = study.sealed("hospital-1", first_round, bytes(body))
    assert "not a ciphertext of this study" in problem(study.put("hospital-1", sealed), 400, "malformed_message")


# --- who, where, how often --------------------------------------------------------------------------------------------


def test_a_site_outside_the_cohort(study: Encrypting, first_round: Announcement) -> None:
    sealed = study.sealed(EXTRA, first_round, study.body(update(1)))
    assert "is not listed for round 1" in problem(study.put(EXTRA, sealed), 403, "not_listed")


def test_another_sites_name_on_it(study: Encrypting, first_round: Announcement) -> None:
    sealed = study.sealed("hospital-2", first_round, study.body(update(1)))
    assert "names 'hospital-2'" in problem(study.put("hospital-1", sealed), 403, "not_listed")


def test_side_b_takes_none(study: Encrypting, first_round: Announcement) -> None:
    sealed = study.sealed("hospital-1", first_round, study.body(update(1)))
    detail = problem(study.put("hospital-1", sealed, side=Side.B), 400, "malformed_message")
    assert "go to side A alone" in detail


def test_a_commitment_for_side_b(study: Encrypting, first_round: Announcement) -> None:
    sealed = study.sealed("hospital-1", first_round, study.body(update(1)), commitment_b="12" * 32)
    assert "must be all zeros" in problem(study.put("hospital-1", sealed), 400, "malformed_message")


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


# --- announcements ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", list(Side))
def test_a_round_of_shares_in_a_study_of_ciphertexts(study: Encrypting, side: Side) -> None:
    announcement = study.announcement(1).model_copy(update={"ckks_key_id": None})
    body = sign(announcement, REQUESTER, study.sites.me.keys.signing).canonical()
    response = study.sites.me.send(side, "POST", study.sites.path(paths.ANNOUNCEMENT, round=1), body)
    assert "exactly under 'ckks'" in problem(response, 400, "malformed_message")


# --- and the others ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def too_few(federation: Federation) -> Iterator[Encrypting]:
    """A round that closes with two contributors' ciphertexts; it waits while another test's round does."""
    made = encrypting(federation, "too-few")
    body = made.body(update(1))
    announcement = made.announcement(1, closes_in_s=CLOSES_IN_S)
    made.sites.announce(announcement)
    for site in (REQUESTER, *CONTRIBUTORS[:2]):
        assert made.put(site, made.sealed(site, announcement, body)).is_success
    yield made
    made.sites.close()


@pytest.mark.usefixtures("too_few")
def test_the_round_goes_on_with_the_others_and_the_next_one_keeps_the_key(federation: Federation) -> None:
    study = encrypting(federation, "going-on")
    try:
        honest = (REQUESTER, *CONTRIBUTORS[:3])
        updates = {site: update(place) for place, site in enumerate(honest)}
        announcement = study.announcement(1, closes_in_s=CLOSES_IN_S)
        bodies = {site: study.body(updates[site], of=(announcement.digest(), site)) for site in honest}
        study.sites.announce(announcement)
        broken = bytearray(bodies[REQUESTER])
        broken[HEADER_BYTES + 64 :] = b"\xff" * (len(broken) - HEADER_BYTES - 64)
        for site, body in (*bodies.items(), ("hospital-4", bytes(broken))):
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
        for side in Side:
            study.sites.wait_round(side, 1, RoundState.RELEASED)
        assert_average(study, updates, current.announcement.message.digest())
        detail = problem(
            study.sites.me.send(Side.B, "GET", study.sites.path(paths.OUTPUT, round=1)), 404, "unknown_resource"
        )
        assert "at side A alone" in detail
        another = study.announcement(2).model_copy(update={"ckks_key_id": "ab" * 16})
        body = sign(another, REQUESTER, study.sites.me.keys.signing).canonical()
        response = study.sites.me.send(Side.A, "POST", study.sites.path(paths.ANNOUNCEMENT, round=2), body)
        assert "it has one key" in problem(response, 400, "malformed_message")
    finally:
        study.sites.close()


def test_with_too_few_ciphertexts_both_servers_sign_the_skip(federation: Federation, too_few: Encrypting) -> None:
    for side in Side:
        skipped = too_few.sites.wait_round(side, 1, RoundState.SKIPPED)
        assert skipped.outcome is not None
        names = (federation.roster.operator_a.name, federation.roster.operator_b.name)
        outcome = require_signatures(skipped.outcome, federation.roster, names)
        assert outcome.cause is OutcomeCause.TOO_FEW_CONTRIBUTORS


def test_once_all_have_declined_both_servers_sign_the_skip(federation: Federation) -> None:
    """Long before the round's time."""
    study = encrypting(federation, "all-declined")
    try:
        study.sites.announce(study.announcement(1))
        letter = study.sites.path(paths.MAIL, topic="decline-1", recipient=REQUESTER)
        for site in CONTRIBUTORS:
            notice = secrets.token_bytes(sealed_small_length(NOTICE_BYTES))
            study.sites.clients[site].ok(Side.A, "PUT", letter, notice)
        names = (federation.roster.operator_a.name, federation.roster.operator_b.name)
        for side in Side:
            skipped = study.sites.wait_round(side, 1, RoundState.SKIPPED)
            assert skipped.outcome is not None
            outcome = require_signatures(skipped.outcome, federation.roster, names)
            assert (outcome.cause, outcome.found) == (OutcomeCause.TOO_FEW_CONTRIBUTORS, 0)
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
