"""Attacks on the cryptography and on the sites' policy, each named after what the attacker tries."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from client_agent.contributor.decisions import Decisions
from client_agent.contributor.run import Contributor
from client_agent.site.journal import SiteState, StudyJournal
from protocol.arithmetic.fixed_point import encode
from protocol.arithmetic.ring import to_signed
from protocol.errors import BadSignature, BrokenSeal, ConsistencyCheckFailed, MalformedMessage, PolicyRefusal
from protocol.mpc.ot import check
from protocol.parameters import Needs, StudyParameters
from protocol.policy.check import Terms, check_weight_list
from protocol.policy.memory import SiteMemory, remember_contribution
from protocol.policy.site_policy import SitePolicy
from protocol.rules.weight_erosion import WeightErosion
from protocol.sharing import Side
from protocol.wire import paths
from protocol.wire.authentic import check_signature, require_signatures, sign
from protocol.wire.channel.sealing import SealedReader, seal_stream
from protocol.wire.messages import (
    Announcement,
    ContributionHeader,
    ListedWeight,
    Receipt,
    ReleaseSet,
    RuleName,
    RuleSpec,
    ShareKind,
    Signature,
    Signed,
    Study,
    WeightList,
)
from tests.unit.parties import announcement as announced
from tests.unit.parties import parties, study

CHI = bytes(range(16))
CONTENT_KEY, SALT = b"k" * 32, b"s" * 32


# --- OT extension -----------------------------------------------------------------------------------------------------


def cheating_columns(delta: bytes, columns: list[int]) -> tuple[check.CheckAnswer, np.ndarray, np.ndarray]:
    """A receiver with another choice vector in some columns: its honest answer, the errors, the sender's columns."""
    rng = np.random.default_rng(17)
    choices = rng.integers(0, 256, 40, dtype=np.uint8)
    t = rng.integers(0, 256, (128, 40), dtype=np.uint8)
    errors = np.zeros((128, 40), dtype=np.uint8)
    errors[columns] = rng.integers(1, 256, (len(columns), 40), dtype=np.uint8)
    bits = np.unpackbits(np.frombuffer(delta, np.uint8), bitorder="little")[:, None]
    return check.answer(CHI, choices, t), errors, t ^ bits * (choices ^ errors)


def passes(delta: bytes, seen: np.ndarray, claimed: check.CheckAnswer) -> bool:
    try:
        check.verify(CHI, delta, seen, claimed)
    except ConsistencyCheckFailed:
        return False
    return True


def test_guessing_bits_of_delta_after_chi_is_known_passes_once_in_two_to_the_k():
    """The best a receiver can do with k wrong columns: fit its answer to a guess of k bits of Delta. One Delta fits."""
    wrong = [3, 40, 127]
    guess = (1, 0, 1)
    passed = []
    for bits in itertools.product((0, 1), repeat=len(wrong)):
        delta = bytearray(range(100, 116))
        for column, bit in zip(wrong, bits, strict=True):
            delta[column // 8] = delta[column // 8] & ~(1 << column % 8) | bit << column % 8
        honest, errors, seen = cheating_columns(bytes(delta), wrong)
        fitted = honest.column_hashes.copy()
        fitted[wrong] ^= np.array(guess, np.uint8)[:, None] * check.column_hashes(CHI, errors)[wrong]
        if passes(bytes(delta), seen, check.CheckAnswer(honest.choices_hash, fitted)):
            passed.append(bits)
    assert passed == [guess]


def test_two_factions_of_columns_cannot_both_be_claimed():
    """Half the columns hide x, half x': whichever x~ is claimed, with all t~ as they are, the other half shows."""
    delta = b"\xff" * 16
    second = list(range(64, 128))
    honest, errors, seen = cheating_columns(delta, second)
    seen = seen.copy()
    seen[second] ^= errors[second] ^ errors[64]
    other = honest.choices_hash ^ check.column_hashes(CHI, errors[64:65])[0]
    for claimed in (honest.choices_hash, other):
        assert not passes(delta, seen, check.CheckAnswer(claimed, honest.column_hashes))


# --- seals and signatures ---------------------------------------------------------------------------------------------


def contribution_header(site: str) -> ContributionHeader:
    return ContributionHeader(
        study_digest="a" * 64,
        round=1,
        attempt=1,
        site=site,
        side=Side.A,
        announcement_digest="b" * 64,
        commitment_a="c" * 64,
        commitment_b="d" * 64,
        share_kind=ShareKind.SEED,
        length=6,
    )


def reheaded(sealed: bytes, old: bytes, new: bytes) -> bytes:
    """A sealed message under another header, everything else as it was."""
    start = 8
    return sealed[:start] + len(new).to_bytes(4, "big") + new + sealed[start + 4 + len(old) :]


@pytest.mark.parametrize(
    "change",
    [{"site": "hospital-2"}, {"round": 2}, {"attempt": 2}, {"side": "b"}, {"study_digest": "e" * 64}, {"length": 7}],
)
def test_copying_another_sites_sealed_share_under_an_own_header_fails(change: dict[str, Any]):
    """A share seen on the wire cannot be contributed again: by another site, in another round, attempt or study."""
    keys = parties().keys["operator-a"]
    old = contribution_header("hospital-1").canonical()
    sealed = b"".join(seal_stream(old, [b"x" * 32], keys.sealing.public, CONTENT_KEY, SALT))
    new = json.dumps(json.loads(old) | change, sort_keys=True, separators=(",", ":")).encode()

    def parsed(raw: bytes) -> None:
        ContributionHeader.parse(raw)

    reader = SealedReader(keys.sealing, parsed)
    with pytest.raises(BrokenSeal):
        reader.feed(reheaded(sealed, old, new))


def test_a_header_of_the_same_meaning_in_other_bytes_does_not_open():
    """Spaces or another order of keys parse to the same header, but the seal is bound to the bytes."""
    keys = parties().keys["operator-a"]
    old = contribution_header("hospital-1").canonical()
    sealed = b"".join(seal_stream(old, [b"x" * 32], keys.sealing.public, CONTENT_KEY, SALT))
    new = json.dumps(json.loads(old)).encode()
    assert ContributionHeader.parse(new) == ContributionHeader.parse(old)
    with pytest.raises(BrokenSeal):
        SealedReader(keys.sealing).feed(reheaded(sealed, old, new))


def test_a_signature_of_one_study_is_none_for_another():
    federation = parties()
    roster, key = federation.roster.message, federation.keys["hospital-0"].signing
    one, other = study(roster.digest()), study(roster.digest(), dimension=8)
    signed = sign(announced(one.digest()), "hospital-0", key)
    require_signatures(signed, roster, ["hospital-0"])
    moved = Signed[Announcement](message=announced(other.digest()), signatures=signed.signatures)
    with pytest.raises(BadSignature):
        require_signatures(moved, roster, ["hospital-0"])


def test_a_signature_over_one_kind_of_message_is_none_over_another_with_the_same_bytes():
    class Lookalike(Receipt):
        KIND = "lookalike"

    federation = parties()
    fields: dict[str, Any] = {
        "study_digest": "a" * 64,
        "round": 1,
        "attempt": 1,
        "site": "hospital-1",
        "body_digest": "b" * 64,
    }
    receipt, lookalike = Receipt(side=Side.A, **fields), Lookalike(side=Side.A, **fields)
    assert receipt.canonical() == lookalike.canonical()
    assert receipt.digest() != lookalike.digest()
    party = federation.roster.message.operator_a
    signature = sign(lookalike, party.name, federation.keys[party.name].signing).signatures[0]
    with pytest.raises(BadSignature):
        check_signature(receipt, signature, party)


def test_another_partys_signature_under_a_borrowed_name_is_refused():
    federation = parties()
    release = ReleaseSet(study_digest="a" * 64, round=1, attempt=1, agreed_set_digest="b" * 64, sites=("hospital-0",))
    by_site = sign(release, "hospital-1", federation.keys["hospital-1"].signing).signatures[0]
    borrowed = Signed[ReleaseSet](
        message=release, signatures=(Signature(signer="hospital-0", value=by_site.value), by_site)
    )
    with pytest.raises(BadSignature):
        require_signatures(borrowed, federation.roster.message, ["hospital-0"])


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", '"600"', "true"])
def test_numbers_that_json_has_no_one_form_for_are_refused(value: str):
    """Otherwise canonical bytes, and with them digests, would fail or differ between parties."""
    text = study("a" * 64).canonical().decode()
    changed = text.replace('"round_deadline_s":600.0', f'"round_deadline_s":{value}')
    assert changed != text
    with pytest.raises(MalformedMessage, match=r"round_deadline_s|JSON"):
        type(study("a" * 64)).parse(changed.encode())


# --- fixed point ------------------------------------------------------------------------------------------------------


def test_rounding_is_unbiased_and_below_one_unit_at_every_magnitude():
    """A site's own fractions must not leak a bias: tiny, negative and near E = 2^21 alike.

    Each mean of n draws has standard deviation at most 0.5 / sqrt(n); six of them leave a chance below 1e-8 a value.
    """
    parameters = StudyParameters(dimension=1, clip_norm=1.0, least_contributors=3)
    n, unit = 40_000, 1 / parameters.scale
    fractions = [0.25, -0.25, 0.999, 1e-20, -1e-20, 5e-324, -5e-324, 2.0**21 - 0.25, -(2.0**21) + 0.25, 2.0**21, -1.0]
    for place, x in enumerate(fractions):
        coded = to_signed(encode(np.full(n, x * unit), parameters, bytes([place]) * 32)).astype(np.float64)
        assert np.max(np.abs(coded - x)) < 1
        assert abs(np.mean(coded) - x) <= 6 * 0.5 / np.sqrt(n)
        if x == round(x):
            assert np.all(coded == x)


# --- a malicious requester against the sites' policy ------------------------------------------------------------------

STUDY = "ab" * 32
EVEN = {"b": 32, "c": 32, "d": 32, "e": 32}


def weight_list(weights: dict[str, int], number: int) -> WeightList:
    listed = tuple(ListedWeight(site=site, numerator=n) for site, n in weights.items())
    return WeightList(study_digest=STUDY, round=number, grid=32, weights=listed, salt="00" * 32)


def told(of: WeightList, version: int = 0) -> Announcement:
    return Announcement(
        study_digest=STUDY,
        round=of.round,
        listed=tuple(w.site for w in of.weights),
        least_contributors=3,
        opens=Needs.DISTANCES,
        model_version=version,
        model_digest="cd" * 32,
        weight_list_digest=of.digest(),
        closes_at_s=0,
    )


def demand(of: WeightList, memory: SiteMemory) -> None:
    parameters = StudyParameters(dimension=62, clip_norm=1.0, least_contributors=3)
    terms = Terms(parameters, ("b", "c", "d", "e"), WeightErosion(0.01, 0.2, 32, 32), SitePolicy())
    check_weight_list("b", told(of), of, terms, memory)


def test_padding_the_list_with_heavy_accomplices_does_not_hide_a_heavy_site():
    """Only the m - 1 lightest others are sure to be in the sum, so heavy names on the list add nothing."""
    of = weight_list({"b": 32, "c": 10, "d": 11, "e": 32}, 1)
    with pytest.raises(PolicyRefusal, match="largest_share"):
        demand(of, SiteMemory())


def test_announcing_again_before_a_release_was_seen_gets_no_second_sum_of_the_same_model():
    """The requester releases {b, c, d, e} in round 1 and at once announces round 2 for {b, c, d} and the same model.

    A site that was slow or away has not seen the release. The difference of the two sums is e's update, so until it
    knows how its last round ended (a release, or a skip that both servers signed) it must not contribute again.
    """
    first = weight_list(EVEN, 1)
    memory = remember_contribution(SiteMemory(), told(first), first)
    second = weight_list({"b": 32, "c": 32, "d": 32}, 2)
    with pytest.raises(PolicyRefusal):
        demand(second, memory)


def contributor(of: Study, folder: Path) -> Contributor:
    """A contributor's decisions without threads or servers."""
    site = Contributor.__new__(Contributor)
    site.study, site.study_digest = of, of.digest()
    site.journal = StudyJournal(folder, of.name)
    site.state = SiteState(study_digest=site.study_digest, training_seed=0)
    roster = SimpleNamespace(requester="a", contributors=[SimpleNamespace(name=name) for name in EVEN])
    site.context = SimpleNamespace(
        roster=roster, held=SimpleNamespace(of=lambda _: roster), site="b", policy=SitePolicy()
    )  # type: ignore[assignment]
    site.event = lambda *_: None  # type: ignore[method-assign]
    site.decisions, site._refused_welcome = Decisions(site, lambda *_: None), -1
    return site


def test_an_unasked_welcome_with_the_same_model_does_not_reset_what_the_site_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The requester sends the site the model it has, as model 1: all counts per model would start afresh."""
    model = np.arange(6, dtype=np.float32)
    site = contributor(study("a" * 64), tmp_path)
    unasked = SimpleNamespace(site_key="1" * 64, model_version=1, previous=None)
    monkeypatch.setattr("client_agent.contributor.run.open_welcome", lambda *_: unasked)
    monkeypatch.setattr("client_agent.contributor.run.open_checkpoint", lambda *_: model.copy())
    site.adopt_model(model, 0, site_key="1" * 64)
    entry = paths.fill(paths.WELCOME_TOPIC, version=1) + "/a"
    site.take_welcome(SimpleNamespace(mail=(entry,)))  # type: ignore[arg-type]
    assert site.state.model_version == 0


@pytest.mark.parametrize("opens", list(Needs))
def test_measuring_under_a_rule_that_opens_nothing_is_refused(opens: Needs, tmp_path: Path):
    """Each measured round gives the requester a function of its choice of every update; FedAvg promised none."""
    averaged = study("a" * 64).model_copy(update={"rule": RuleSpec(name=RuleName.FEDAVG)})
    site = contributor(averaged, tmp_path)
    of = weight_list(EVEN, 1)
    announcement = told(of).model_copy(update={"opens": opens})
    if opens is Needs.NOTHING:
        site.decisions._check_policy(announcement, of)
        return
    with pytest.raises(PolicyRefusal):
        site.decisions._check_policy(announcement, of)
