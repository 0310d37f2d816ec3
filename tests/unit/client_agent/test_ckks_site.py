"""A site in a study under CKKS: what it seals and sends once, what it opens, and what forged sums do to it."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeVar

import numpy as np
import pytest

from client_agent.contributor.decisions import Decision
from client_agent.requester.plan import hindrance
from client_agent.site.events import EventKind, RoundEnd
from client_agent.site.journal import StudyJournal
from client_agent.site.letters import Welcome
from client_agent.study.contribution import (
    ContributionRecord,
    encoded_path,
    journal_encoded,
    make_contribution,
    send_contribution,
)
from client_agent.study.release import Outputs, own_key_id
from host.files import MemoryFile
from host.randomness import SystemRandomness
from protocol.arithmetic.kernels import Scaling
from protocol.channel.commitment import MessageDigest, check_commitment
from protocol.channel.sealing import SealedReader
from protocol.ckks.ciphertext import CkksParameters, Kind, chunks_of
from protocol.ckks.scheme import Adder, Decryptor, Encryptor
from protocol.ckks.update import SiteChecks, SumChecks, average, body_header, contribution
from protocol.errors import (
    AggregateOutOfBounds,
    AnnouncementMismatch,
    BadSignature,
    Clause,
    ConfigurationError,
    TranscriptMismatch,
    Unavailable,
    UnusableUpdate,
)
from protocol.messages.control import (
    NO_COMMITMENT,
    Announcement,
    ContributionHeader,
    EndCause,
    OutputHeader,
    Purpose,
    RuleName,
    RuleSpec,
    ShareKind,
    Study,
    StudyProtection,
)
from protocol.parameters import Needs
from protocol.policy.clauses import MOST_DISCARDED_SUMS
from protocol.policy.site_policy import SitePolicy
from protocol.protection import ckks
from protocol.protection.ckks import Ciphertexts, check_key, derive_key, require_scheme
from protocol.protection.interface import AtSite, Encoded, UnderKey
from protocol.rounds.evidence import PastRelease
from protocol.sharing import Side
from tests.kit.present import present
from tests.kit.round_messages import sum_release
from tests.sealed_bodies import closed
from tests.unit.client_agent.announced_rounds import MODEL, announced, post, views
from tests.unit.client_agent.benches import Bench, contributor_bench, requester_bench
from tests.unit.client_agent.federation import (
    CONTRIBUTORS,
    PARAMETERS,
    REQUESTER,
    ROSTER,
    announcement,
    evidence,
    keys,
    layered,
    operator_keys,
    signed_by_both,
    study,
    weight_list,
)
from tests.unit.client_agent.uploads import UploadServer

# --- ckks site --------------------------------------------------------------------------------------------------------

pytest.importorskip("tenseal")
T = TypeVar("T")
SITE, GRID = "c1", PARAMETERS.weight_grid
SEED = "07" * 32
DIMENSION = PARAMETERS.dimension
SHARES = layered(study()).model_copy(update={"rule": RuleSpec(name=RuleName.FEDAVG)})
ENCRYPTED_STUDY: Study = SHARES.model_copy(update={"protection": StudyProtection.CKKS})
ENCRYPTED_STUDY = ENCRYPTED_STUDY.model_copy(update={"rounds": 9})
DIGEST = ENCRYPTED_STUDY.digest()
KEY = derive_key(SEED, DIGEST)


def released_round(number: int = 1) -> PastRelease:
    """The evidence of a round of ciphertexts on the first model."""
    listed = weight_list(number, GRID, GRID, DIGEST)
    told = announced(listed, MODEL, opens=Needs.NOTHING, ckks_key_id=KEY.id.hex())
    return evidence(told, listed, (REQUESTER, *CONTRIBUTORS))


PAST = released_round()
ANNOUNCED = PAST.announcement


def at(folder: Path) -> AtSite:
    under = UnderKey(KEY, lambda: closing(MemoryFile()), lambda: TemporaryFile(dir=folder))  # noqa: SIM115
    return AtSite(ENCRYPTED_STUDY, SITE, ROSTER, under)


def encrypted(vector: np.ndarray, folder: Path, weight: float = 1.0) -> Encoded:
    return Ciphertexts().encode(at(folder), ANNOUNCED, vector, weight, b"")


def update(seed: int = 4) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=DIMENSION)
    return (2 * drawn / np.linalg.norm(drawn)).astype(np.float32)


# --- the contribution -------------------------------------------------------------------------------------------------


@pytest.fixture
def journal(tmp_path: Path) -> StudyJournal:
    return StudyJournal(tmp_path, "unit")


@pytest.fixture
def made(journal: StudyJournal) -> Path:
    path = encoded_path(journal, ENCRYPTED_STUDY, ANNOUNCED)
    assert path.name == "encrypted.ckks"
    journal_encoded(encrypted(update(), journal.folder, 0.5), path, 0.5, PARAMETERS.weight_grid)
    return path


def deliver(journal: StudyJournal, server: UploadServer) -> ContributionRecord:
    record = make_contribution(at(journal.folder), ANNOUNCED, 1, SystemRandomness(), journal)
    send_contribution(record, at(journal.folder), DIGEST, {Side.A: server}, journal)  # type: ignore[dict-item]
    return record


def test_server_a_opens_the_body_that_was_committed_to(made: Path, journal: StudyJournal) -> None:
    server = UploadServer(SITE, study_digest=DIGEST)
    deliver(journal, server)
    reader = SealedReader(operator_keys(Side.A).sealing)
    body = b"".join([*reader.feed(server.bodies[0]), reader.finish()])
    assert body == made.read_bytes()
    header = ContributionHeader.parse(reader.header or b"")
    assert (header.share_kind, header.length, header.side) == (ShareKind.CIPHERTEXT, DIMENSION + 1, Side.A)
    assert header.commitment_b == NO_COMMITMENT
    taken = MessageDigest()
    taken.update(server.bodies[0])
    check_commitment(
        bytes.fromhex(header.commitment_a), present(reader.salt), present(reader.content_key), taken.body_hash()
    )


def test_it_is_encrypted_and_sealed_once_and_resent_as_it_is(made: Path, journal: StudyJournal) -> None:
    server = UploadServer(SITE, study_digest=DIGEST, failures=1)
    with pytest.raises(Unavailable):
        deliver(journal, server)
    for _ in range(2):  # the second time the receipt is there already
        deliver(journal, server)
    assert len(server.bodies) == 2
    assert server.bodies[0] == server.bodies[1]


def test_an_attempt_that_an_earlier_agent_sealed_is_sent_and_not_sealed_again(
    made: Path, journal: StudyJournal
) -> None:
    server = UploadServer(SITE, study_digest=DIGEST, failures=1)
    with pytest.raises(Unavailable):
        deliver(journal, server)
    kept = journal.attempt_folder(1, 1) / "ciphertext.json"
    found = json.loads(kept.read_bytes())
    del found["digest_b"]
    kept.write_text(json.dumps({"digest": found.pop("digest_a")} | found))
    deliver(journal, server)
    assert server.bodies[0] == server.bodies[1] == (journal.attempt_folder(1, 1) / "ciphertext.sealed").read_bytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_refused_by_layer_before_encryption(journal: StudyJournal, bad: float) -> None:
    broken = update()
    broken[950] = bad
    with pytest.raises(UnusableUpdate, match="layer 'bias': 1 of 100"):
        encrypted(broken, journal.folder)


def test_a_long_update_is_clipped_and_its_norm_is_the_clip_norm(journal: StudyJournal) -> None:
    clipped, short = encrypted(10 * update(), journal.folder), encrypted(update(), journal.folder)
    assert (clipped.clipped, clipped.norm) == (True, PARAMETERS.clip_norm)
    assert not short.clipped
    assert short.norm == pytest.approx(2.0, rel=1e-6)  # float32 entries of a vector of length 2


# --- the output -------------------------------------------------------------------------------------------------------


RELEASED = PAST.release_set.message.sites
UPDATES = {site: update(place) for place, site in enumerate(RELEASED)}


def signed_sum(past: PastRelease, body: bytes) -> PastRelease:
    """The evidence with both servers' signatures under this sum."""
    ended = sum_release(past.release_set.message, hashlib.sha256(body).hexdigest())
    return past.model_copy(update={"sum_release": signed_by_both(ended)})


@cache
def summed(past: PastRelease = PAST, sites: tuple[str, ...] = RELEASED, weight: float = 1.0) -> bytes:
    """The sum that server A makes of these sites' ciphertexts, any of them as often as it likes."""
    header = body_header(Kind.CONTRIBUTION, KEY, DIMENSION)
    scaling, encryptor, of = Scaling(weight=weight), Encryptor(KEY, MemoryFile()), past.announcement.digest()
    encrypts = partial(contribution, encryptor, header)
    bodies = [
        b"".join(encrypts(UPDATES[site], scaling, PARAMETERS.clip_norm, SiteChecks(KEY, of, site))) for site in sites
    ]
    adder, pieces = Adder(KEY.scheme, MemoryFile()), [body_header(Kind.SUM, KEY, DIMENSION).to_bytes()]
    for chunks in zip(*(chunks_of([body], CkksParameters(), header) for body in bodies), strict=True):
        for chunk in chunks:
            adder.add(chunk)
        pieces.append(adder.finish())
    return b"".join(pieces)


@dataclass
class OutputServer:
    """Serves a sum, sealed to the site."""

    body: bytes
    changes: dict[str, object] = field(default_factory=dict)
    past: PastRelease = PAST

    def fetch_output(self, name: str, round_number: int, take: Callable[[Iterator[bytes]], T], most_bytes: int) -> T:
        header = OutputHeader(
            release_digest=self.past.release_set.message.digest(),
            side=Side.A,
            share_kind=ShareKind.CIPHERTEXT,
            recipient=own_key_id(ROSTER, SITE),
            length=DIMENSION + 1,
        ).model_copy(update=self.changes)
        sealed = closed(header, [self.body], keys(SITE).sealing.public)
        return take(sealed[at : at + 999] for at in range(0, len(sealed), 999))


class Nothing(OutputServer):
    def fetch_output(self, name: str, round_number: int, take: Callable[[Iterator[bytes]], T], most_bytes: int) -> T:
        raise AssertionError("fetched")


def opened(server: OutputServer, folder: Path, past: PastRelease | None = None) -> np.ndarray:
    output = Outputs(at(folder), DIGEST, keys(SITE).sealing, {Side.A: server})  # type: ignore[dict-item]
    return output.open(past or signed_sum(PAST, server.body))


WITHIN = 8 * CkksParameters().value_deviation * np.sqrt(4) * PARAMETERS.clip_norm * 2 / 4
"""Each value of the sum of 4, and the sum of the weights, is within 8 standard deviations of noise, in units of C."""


def test_the_average_is_that_of_plain_arithmetic_within_the_stated_error(tmp_path: Path) -> None:
    found = opened(OutputServer(summed()), tmp_path)
    assert list(tmp_path.iterdir()) == []
    expected = np.mean([one.astype(np.float64) for one in UPDATES.values()], axis=0)
    assert np.all(np.abs(found - expected) <= WITHIN + 2.0**-24 * np.abs(expected))
    header = body_header(Kind.SUM, KEY, DIMENSION)
    checks = SumChecks(KEY, PAST.announcement.digest(), RELEASED)
    again = average([summed()], Decryptor(KEY, MemoryFile()), header, checks, 1.0, PARAMETERS.clip_norm)
    assert found.shape == again.shape == (DIMENSION,)


def test_the_sum_of_another_release_or_for_another_site_is_refused(tmp_path: Path) -> None:
    cases: tuple[dict[str, object], ...] = (
        {"recipient": own_key_id(ROSTER, "c2")},
        {"release_digest": "00" * 32},
        {"share_kind": ShareKind.VECTOR},
    )
    for changes in cases:
        with pytest.raises(TranscriptMismatch, match="another release, kind or recipient"):
            opened(OutputServer(b"", changes), tmp_path)


def test_a_round_under_another_key_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    announced: Announcement = PAST.announcement.model_copy(update={"ckks_key_id": "ab" * 16})
    past = evidence(announced, PAST.weight_list, RELEASED)
    with pytest.raises(TranscriptMismatch, match="under another key"):
        opened(Nothing(b""), tmp_path, signed_sum(past, b""))


def test_weights_that_the_rule_does_not_give_discard_the_round(tmp_path: Path) -> None:
    with pytest.raises(AggregateOutOfBounds, match="must lie between 4 and 4"):
        opened(OutputServer(summed(weight=0.5)), tmp_path)


def test_a_sum_that_one_server_alone_signed_is_not_fetched(tmp_path: Path) -> None:
    both = signed_sum(PAST, b"")
    assert both.sum_release is not None
    for at in (0, 1):
        alone = both.sum_release.model_copy(update={"signatures": (both.sum_release.signatures[at],)})
        with pytest.raises(BadSignature):
            opened(Nothing(b""), tmp_path, both.model_copy(update={"sum_release": alone}))
    with pytest.raises(BadSignature, match="without both servers' signatures"):
        opened(Nothing(b""), tmp_path, PAST)


@pytest.mark.parametrize("changes", [{"round": 2}, {"release_digest": "00" * 32}, {"study_digest": "00" * 32}])
def test_signatures_under_another_rounds_sum_do_not_count(tmp_path: Path, changes: dict[str, object]) -> None:
    both = signed_sum(PAST, b"")
    other = signed_by_both(present(both.sum_release).message.model_copy(update=changes))
    with pytest.raises(AnnouncementMismatch, match="the sum of another round or release"):
        opened(OutputServer(b""), tmp_path, both.model_copy(update={"sum_release": other}))


def test_another_sum_than_both_signed_is_no_reason_to_discard_and_nothing_is_decrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server or a proxy serves this site something else: the site looks again, and says nothing by discarding."""
    honest = summed()
    monkeypatch.setattr(Decryptor, "decrypt", lambda *_: pytest.fail("decrypted"))
    with pytest.raises(TranscriptMismatch, match="another sum than both servers signed"):
        opened(OutputServer(honest[:-1] + bytes([honest[-1] ^ 1])), tmp_path, signed_sum(PAST, honest))
    assert list(tmp_path.iterdir()) == []


# --- forged sums ------------------------------------------------------------------------------------------------------
#
# Server A has its sum signed by B, as any, but it is one site's ciphertext times the number of sites. Whether such a
# sum opens is tried by the attacks "ckks-one-site-alone" and "ckks-other-sums"; here is what a real agent makes of it:
# nothing of the victim's update is applied, stored, shown or passed on, and after a few such rounds the site takes
# part no more.

VICTIM = "c2"
WILLING = SitePolicy(allow_ckks=True, least_isolation=0.0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with contributor_bench(tmp_path, ENCRYPTED_STUDY, MODEL, WILLING) as made:
        made.contributor.save(ckks_key_seed=SEED)
        yield made


def served(bench: Bench, number: int, sites: tuple[str, ...] = (VICTIM,) * len(RELEASED)) -> RoundEnd:
    """The end of a released round at the site when server A serves the sum of ``sites``."""
    past = released_round(number)
    body = summed(past, sites)
    bench.servers[Side.A].fetch_output = OutputServer(body, past=past).fetch_output  # type: ignore[method-assign]
    return bench.contributor.take_release(signed_sum(past, body))


def decided(bench: Bench, number: int) -> Decision:
    past = released_round(number)
    post(bench, past.weight_list)
    return bench.contributor.decisions.decide(*views(past.announcement))


def test_the_honest_sum_is_applied(bench: Bench) -> None:
    assert served(bench, 1, RELEASED) is RoundEnd.RELEASED
    mean = np.mean(list(UPDATES.values()), axis=0)
    assert bench.contributor.require_kept() == pytest.approx(MODEL - mean, abs=WITHIN + 1e-6)
    assert bench.contributor.state.discarded == ()


def test_the_victims_update_changes_nothing_at_the_site(bench: Bench, tmp_path: Path) -> None:
    """Not the model, not the files but for the memory of a release and of a discarded sum, and no letter leaves."""
    assert served(bench, 1) is RoundEnd.DISCARDED
    assert np.array_equal(bench.contributor.require_kept(), MODEL)
    assert (bench.contributor.state.model_version, bench.contributor.state.discarded) == (0, (1,))
    (text,) = bench.texts(EventKind.PROBLEM)
    assert "server A, which alone adds, changed it" in text
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert UPDATES[VICTIM].tobytes() not in stored
    assert (MODEL - UPDATES[VICTIM]).tobytes() not in stored
    assert all(server.sent == {} for server in bench.servers.values())


def test_after_a_few_discarded_sums_and_not_before_the_site_contributes_no_more(bench: Bench, tmp_path: Path) -> None:
    memory = bench.contributor.state.memory
    for number in range(1, 1 + MOST_DISCARDED_SUMS):
        bench.contributor.save(memory=memory)  # so that no other clause stands in the way
        assert decided(bench, number).clause is not Clause.DISCARDED_SUMS
        for _ in range(2):  # the second time after a crash: counted once
            assert served(bench, number) is RoundEnd.DISCARDED
        assert bench.contributor.state.discarded == tuple(range(1, number + 1))
    state = present(StudyJournal(tmp_path, ENCRYPTED_STUDY.name).site_state())
    assert len(state.discarded) == MOST_DISCARDED_SUMS
    bench.contributor.save(memory=memory)
    decision = decided(bench, 1 + MOST_DISCARDED_SUMS)
    assert (decision.accepted, decision.clause) == (False, Clause.DISCARDED_SUMS)


def test_the_requester_ends_the_study_then(tmp_path: Path) -> None:
    with requester_bench(tmp_path, ENCRYPTED_STUDY, MODEL, WILLING) as bench:
        bench.requester.save(discarded=tuple(range(1, MOST_DISCARDED_SUMS)))
        assert hindrance(bench.requester) is None
        bench.requester.save(discarded=tuple(range(1, 1 + MOST_DISCARDED_SUMS)))
        found = present(hindrance(bench.requester))
        assert found.cause is EndCause.SUMS_DISCARDED
        assert "compare server a's records" in found.public


# --- ckks key ---------------------------------------------------------------------------------------------------------


def welcome(seed: str | None = SEED, key_id: str | None = KEY.id.hex()) -> Welcome:
    return Welcome(
        study_digest=DIGEST,
        site=SITE,
        model_version=0,
        checkpoint_digest=DIGEST,
        site_key=DIGEST,
        content_key=DIGEST,
        ckks_key_seed=seed,
        ckks_key_id=key_id,
    )


def welcomed_seed(brought: Welcome, study: Study, known: str | None) -> str | None:
    return ckks.welcomed_seed(study, brought.study_digest, brought.ckks_key_seed, brought.ckks_key_id, known)


def test_a_welcome_brings_the_seed_of_the_key_that_it_names() -> None:
    assert welcomed_seed(welcome(), ENCRYPTED_STUDY, None) == SEED
    assert welcomed_seed(welcome(), ENCRYPTED_STUDY, SEED) == SEED
    assert welcomed_seed(welcome(None, None), SHARES, None) is None
    assert SEED not in repr(welcome())


def test_a_welcome_without_a_key_or_with_another_than_before_is_refused() -> None:
    with pytest.raises(AnnouncementMismatch, match="brought no CKKS key"):
        welcomed_seed(welcome(None), ENCRYPTED_STUDY, None)
    with pytest.raises(AnnouncementMismatch, match="another CKKS key than before"):
        welcomed_seed(welcome("08" * 32), ENCRYPTED_STUDY, SEED)


def test_a_site_that_derives_another_key_than_the_requester_stops() -> None:
    with pytest.raises(ConfigurationError, match="the same version of TenSEAL"):
        welcomed_seed(welcome(key_id="ab" * 16), ENCRYPTED_STUDY, None)


def test_an_announcement_names_the_sites_key_exactly_for_encrypted_updates() -> None:
    shared = announcement()
    counts = announcement(opens=Needs.NOTHING).model_copy(update={"purpose": Purpose.COUNTS})
    check_key(ANNOUNCED, ENCRYPTED_STUDY, KEY)
    check_key(counts, ENCRYPTED_STUDY, KEY)
    check_key(shared, SHARES, None)
    other = ANNOUNCED.model_copy(update={"ckks_key_id": "ab" * 16})
    for wrong, of, key in ((shared, ENCRYPTED_STUDY, KEY), (other, ENCRYPTED_STUDY, KEY), (ANNOUNCED, SHARES, None)):
        with pytest.raises(AnnouncementMismatch, match="names the CKKS key"):
            check_key(wrong, of, key)


def test_without_tenseal_the_error_names_the_extra_and_shares_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tenseal.sealapi", None)
    require_scheme(SHARES)
    with pytest.raises(ConfigurationError, match=r"moiety\[he\]"):
        require_scheme(ENCRYPTED_STUDY)
