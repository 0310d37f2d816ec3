"""Server A has its sum signed by B, as any, but it is one site's ciphertext times the number of sites.

What a real agent makes of it, which every site of the cohort is: nothing of the victim's update is applied, stored,
shown or passed on, and after a few such rounds the site takes part no more. Whether such a sum opens is tried by the
attacks ``ckks-one-site-alone`` and ``ckks-other-sums``; here is what an agent does afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from client_agent.requester.plan import hindrance
from client_agent.site.events import EventKind, RoundEnd
from client_agent.site.journal import StudyJournal
from client_agent.study.release import own_key_id
from host.files import MemoryFile
from protocol.arithmetic.kernels import Scaling
from protocol.ckks.ciphertext import CkksParameters, Kind, chunks_of
from protocol.ckks.scheme import Adder, Encryptor
from protocol.ckks.update import SiteChecks, body_header, contribution
from protocol.errors import Clause
from protocol.messages.control import (
    Announcement,
    EndCause,
    LayerShape,
    ListedWeight,
    ModelSpec,
    OutputHeader,
    RuleName,
    RuleSpec,
    ShareKind,
    StudyProtection,
    SumRelease,
    WeightList,
)
from protocol.parameters import Needs, StudyParameters
from protocol.policy.clauses import MOST_DISCARDED_SUMS
from protocol.policy.site_policy import SitePolicy
from protocol.protection.ckks import derive_key
from protocol.rounds.agreement import model_digest
from protocol.rounds.evidence import PastRelease
from protocol.sharing import Side
from tests.kit.present import present
from tests.sealed_bodies import closed
from tests.unit.client_agent.announced_rounds import post, views
from tests.unit.client_agent.benches import SITE, SITE_KEY, Bench, FakeServer, contributor_bench, requester_bench
from tests.unit.client_agent.federation import (
    CONTRIBUTORS,
    ROSTER,
    keys,
    signed_by_both,
    study,
)
from tests.unit.client_agent.federation import evidence as released

T = TypeVar("T")
SIZE, GRID, VICTIM = 20, 32, "c2"
MODEL = np.linspace(-1, 1, SIZE, dtype=np.float32)
SEED = "07" * 32
OF = study(parameters=StudyParameters(dimension=SIZE, clip_norm=4.0, least_contributors=3)).model_copy(
    update={
        "model": ModelSpec(kind="plugin", layers=(LayerShape(name="weight", shape=(SIZE,)),)),
        "rule": RuleSpec(name=RuleName.FEDAVG),
        "protection": StudyProtection.CKKS,
        "rounds": 9,
    }
)
DIGEST = OF.digest()
KEY = derive_key(SEED, DIGEST)
SITES = tuple(party.name for party in ROSTER.sites)
UPDATES = {
    site: (np.random.default_rng(place).normal(size=SIZE) / 10).astype(np.float32) for place, site in enumerate(SITES)
}
WILLING = SitePolicy(allow_ckks=True, least_isolation=0.0)


def the_list(number: int) -> WeightList:
    weights = tuple(ListedWeight(site=site, numerator=GRID) for site in CONTRIBUTORS)
    return WeightList(study_digest=DIGEST, round=number, grid=GRID, weights=weights, salt="cd" * 32)


def announced(number: int) -> Announcement:
    return Announcement(
        study_digest=DIGEST,
        round=number,
        listed=CONTRIBUTORS,
        least_contributors=3,
        opens=Needs.NOTHING,
        model_version=0,
        model_digest=model_digest(SITE_KEY, DIGEST, number, MODEL.tobytes()),
        weight_list_digest=the_list(number).digest(),
        closes_at_s=10**9,
        ckks_key_id=KEY.id.hex(),
    )


def summed(number: int, sites: tuple[str, ...]) -> bytes:
    """The body that server A makes of these sites' ciphertexts, any of them as often as it likes."""
    header, adder = body_header(Kind.CONTRIBUTION, KEY, SIZE), Adder(KEY.scheme, MemoryFile())
    for site in sites:
        checks = SiteChecks(KEY, announced(number).digest(), site)
        body = contribution(Encryptor(KEY, MemoryFile()), header, UPDATES[site], Scaling(), 4.0, checks)
        (chunk,) = chunks_of(body, CkksParameters(), header)
        adder.add(chunk)
    return body_header(Kind.SUM, KEY, SIZE).to_bytes() + adder.finish()


def evidence(number: int, body: bytes) -> PastRelease:
    """Everybody's signatures under a release of all sites, and both servers' under this sum."""
    past = released(announced(number), the_list(number), SITES)
    named: dict[str, Any] = {"study_digest": DIGEST, "round": number, "attempt": 1}
    release, digest = past.release_set.message.digest(), hashlib.sha256(body).hexdigest()
    ended = SumRelease(release_digest=release, sum_digest=digest, **named)
    return past.model_copy(update={"sum_release": signed_by_both(ended)})


@dataclass
class ServerA(FakeServer):
    """Serves one body, sealed to the site."""

    def __post_init__(self) -> None:
        self.sealed = b""

    def serves(self, past: PastRelease, body: bytes) -> None:
        header = OutputHeader(
            release_digest=past.release_set.message.digest(),
            side=Side.A,
            share_kind=ShareKind.CIPHERTEXT,
            recipient=own_key_id(ROSTER, SITE),
            length=SIZE + 1,
        )
        self.sealed = closed(header, [body], keys(SITE).sealing.public)

    def fetch_output(self, name: str, round_number: int, take: Callable[[Iterator[bytes]], T], most_bytes: int) -> T:
        assert len(self.sealed) <= most_bytes
        return take(iter([self.sealed]))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with contributor_bench(tmp_path, OF, MODEL, WILLING) as made:
        made.servers[Side.A] = ServerA(Side.A)
        made.contributor.save(ckks_key_seed=SEED)
        yield made


def served(bench: Bench, number: int, sites: tuple[str, ...]) -> RoundEnd:
    """The end of a released round at the site when server A serves the sum of ``sites``."""
    body = summed(number, sites)
    past, server = evidence(number, body), bench.servers[Side.A]
    assert isinstance(server, ServerA)
    server.serves(past, body)
    return bench.contributor.take_release(past)


def files_below(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_the_honest_sum_is_applied(bench: Bench) -> None:
    assert served(bench, 1, SITES) is RoundEnd.RELEASED
    mean = np.mean([UPDATES[site] for site in SITES], axis=0)
    assert bench.contributor.require_kept() == pytest.approx(MODEL - mean, abs=1e-6)
    assert bench.contributor.state.discarded == ()


def test_the_victims_update_changes_nothing_at_the_site(bench: Bench, tmp_path: Path) -> None:
    """Not the model, not the files but for the memory of a release and of a discarded sum, and no letter leaves."""
    assert served(bench, 1, (VICTIM,) * len(SITES)) is RoundEnd.DISCARDED
    assert np.array_equal(bench.contributor.require_kept(), MODEL)
    assert bench.contributor.state.model_version == 0
    assert bench.contributor.state.discarded == (1,)
    (text,) = bench.texts(EventKind.PROBLEM)
    assert "server A, which alone adds, changed it" in text
    stored = files_below(tmp_path)
    assert UPDATES[VICTIM].tobytes() not in stored
    assert (MODEL - UPDATES[VICTIM]).tobytes() not in stored
    assert all(server.sent == {} for server in bench.servers.values())


def test_after_a_few_discarded_sums_the_site_contributes_no_more(bench: Bench, tmp_path: Path) -> None:
    for number in range(1, 1 + MOST_DISCARDED_SUMS):
        assert served(bench, number, (VICTIM,) * len(SITES)) is RoundEnd.DISCARDED
        assert served(bench, number, (VICTIM,) * len(SITES)) is RoundEnd.DISCARDED  # after a crash: counted once
        assert bench.contributor.state.discarded == tuple(range(1, number + 1))
    state = present(StudyJournal(tmp_path, OF.name).site_state())
    assert len(state.discarded) == MOST_DISCARDED_SUMS
    bench.contributor.save(memory=type(state.memory)())  # so that no other clause stands in the way
    decision = decided(bench, 1 + MOST_DISCARDED_SUMS)
    assert (decision.accepted, decision.clause) == (False, Clause.DISCARDED_SUMS)


def test_before_that_it_goes_on(bench: Bench) -> None:
    for number in range(1, MOST_DISCARDED_SUMS):
        served(bench, number, (VICTIM,) * len(SITES))
    bench.contributor.save(memory=type(bench.contributor.state.memory)())
    assert decided(bench, MOST_DISCARDED_SUMS).clause is not Clause.DISCARDED_SUMS


def decided(bench: Bench, number: int):
    post(bench, the_list(number))
    return bench.contributor.decisions.decide(*views(announced(number)))


def test_the_requester_ends_the_study_then(tmp_path: Path) -> None:
    with requester_bench(tmp_path, OF, MODEL, WILLING) as bench:
        requester = bench.requester
        requester.save(discarded=tuple(range(1, MOST_DISCARDED_SUMS)))
        assert hindrance(requester) is None
        requester.save(discarded=tuple(range(1, 1 + MOST_DISCARDED_SUMS)))
        found = present(hindrance(requester))
        assert found.cause is EndCause.SUMS_DISCARDED
        assert "compare server a's records" in found.public
