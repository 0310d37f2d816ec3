"""Studies under CKKS over real processes: as the plain run within the stated error, whoever dies or comes late."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from client_agent.site.events import RoundEnd, read_metrics
from client_agent.site.journal import SiteState
from harness.federation.learners import LightLearner
from protocol.ckks.ciphertext import CkksParameters
from protocol.ckks.scheme import Scheme
from protocol.messages.control import OutcomeCause, Study, StudyProtection
from protocol.policy.site_policy import SitePolicy
from protocol.shared_model import first_model
from protocol.sharing import Side
from tests.integration.agents import FEDAVG, changed, finished, wait_for
from tests.integration.crashes import (
    REQUESTER,
    ROUNDS,
    SITES,
    A,
    B,
    Kill,
    crash_federation,
    died,
    light_study_of,
    outcome_of,
    run_killing,
)
from tests.kit.bounds.regression_facts import UNIT, RoundFacts, encryption_error
from tests.kit.present import present
from tests.kit.processes import Federation

pytest.importorskip("tenseal")
WILLING = SitePolicy(least_isolation=0.0, allow_ckks=True, least_contributors=2)
LATE = "c3"
MISSING = OutcomeCause.RELEASE_SET_MISSING.said()
EARLY = tuple(site for site in SITES if site != LATE)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with crash_federation(tmp_path_factory.mktemp("ckks"), {"grace_s": 1.0}, WILLING) as running:
        yield running


def under_ckks(federation: Federation, name: str, rounds: int = ROUNDS, deadline_s: float = 60.0) -> Study:
    changes = {"rule": FEDAVG, "protection": StudyProtection.CKKS, "rounds": rounds, "least_contributors": 2}
    return changed(light_study_of(federation, name), round_deadline_s=deadline_s, **changes)


def require_released(
    federation: Federation, study: Study, took_part: Sequence[tuple[str, ...]] = (SITES,) * ROUNDS
) -> None:
    """Every round was released, with these sites and their sum."""
    records = outcome_of(federation, study).records
    assert [(r.state, r.took_part) for r in records] == [(RoundEnd.RELEASED, sites) for sites in took_part]
    require_model_of(federation, study, took_part)


def require_model_of(federation: Federation, study: Study, took_part: Sequence[tuple[str, ...]]) -> None:
    """Every site has one and the same model: that of plain rounds with these sites, within the encryption's error.

    The updates are multiples of 1/256 and far enough from the middle of two, so a round adds its own error to the
    model, the server's step times the average's, and two float32 roundings; nothing is amplified.
    """
    models = set(outcome_of(federation, study).models)
    assert len(models) == 1
    learners = {site: LightLearner(study, place) for place, site in enumerate(SITES)}
    plain, allowed = first_model(study), 0.0
    step, clip_norm = study.training.server_learning_rate, study.parameters.clip_norm
    for number, sites in enumerate(took_part, 1):
        updates = [learners[site].update(plain, number).astype(np.float64) for site in sites]
        plain = learners[REQUESTER].apply(plain, np.mean(updates, axis=0).astype(np.float32))
        facts = RoundFacts(len(sites), float(len(sites)), 1.0, 1.0, 1.0, 1.0, False, rounded=False)
        rounding = 2 * UNIT * (3 * step * clip_norm + float(np.linalg.norm(plain)) + 1)
        allowed += step * encryption_error(facts, study.parameters) + rounding
    assert allowed < 1e-5
    model = np.frombuffer(models.pop(), dtype="<f4").astype(np.float64)
    assert np.linalg.norm(model - plain) <= allowed


# --- a whole study, and what is left of it ----------------------------------------------------------------------------


def test_a_study_equals_the_plain_one_and_no_server_has_the_key(federation: Federation) -> None:
    of = under_ckks(federation, "whole")
    with Stored([federation.folder / name for name in (A, B)]) as stored:
        run_killing(federation, of)
    require_released(federation, of)
    state = present(federation.journal(REQUESTER, of.name).site_state())
    assert_no_key(stored.contents, federation, of, state)
    with closing(federation.database(Side.A)) as at_a, closing(federation.database(Side.B)) as at_b:
        query = "select count(*) from contributions where study = ?"
        counts = [database.execute(query, (of.digest(),)).fetchone()[0] for database in (at_a, at_b)]
        assert counts == [ROUNDS * len(SITES), 0]
        used = "select count(*) from correlations where study = ?"
        assert at_a.execute(used, (of.digest(),)).fetchone()[0] == 0


class Stored:
    """Everything that was ever in a file below some folders, looked at again and again while the servers run."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.contents: set[bytes] = set()
        self._folders = folders
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> Stored:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def _follow(self) -> None:
        while not self._over.wait(0.02):
            self._look()

    def _look(self) -> None:
        for path in (path for folder in self._folders for path in folder.rglob("*")):
            with suppress(OSError):
                self.contents.add(path.read_bytes())


def assert_no_key(stored: set[bytes], federation: Federation, of: Study, state: SiteState) -> None:
    """Neither the seed nor the secret polynomial is in what the servers stored, and nothing of it loads as a key."""
    seed = bytes.fromhex(present(state.ckks_key_seed))
    key = Scheme(CkksParameters()).secret_key(seed, of.digest())
    data = key.key.data()
    coefficients = [data.data(i) for i in range(32)]
    secret = {seed, seed.hex().encode(), base64.b64encode(seed)[:40], base64.urlsafe_b64encode(seed)[:40]}
    secret |= {np.array(coefficients[:8], dtype="<u8").tobytes()}
    secret |= {b"".join(int(c).to_bytes(5, "little") for c in coefficients[:16])}
    at_site = (federation.journal(REQUESTER, of.name).folder / "site.json").read_bytes()
    assert [one for one in secret if one in at_site]  # the search finds it where it is
    assert len([content for content in stored if content.startswith(b"MOIETYCU")]) >= len(SITES)
    assert [content for content in stored if content.startswith(b"MOIETYCS")]
    for content in stored:
        assert not [one for one in secret if one in content]
        assert not loads_as_key(key.scheme, content, federation.folder / "tried")
    key.key.save(str(federation.folder / "key"))
    assert loads_as_key(key.scheme, (federation.folder / "key").read_bytes(), federation.folder / "tried")


def loads_as_key(scheme: Scheme, content: bytes, path: Path) -> bool:
    path.write_bytes(content)
    try:
        scheme.seal.SecretKey().load(scheme.context, str(path))
    except (RuntimeError, ValueError, IndexError):
        return False
    return True


# --- kill -9 ----------------------------------------------------------------------------------------------------------

QUICK = (
    Kill(A, "masked_sum_midway"),
    Kill(B, "after_output_stored"),
)
MORE = (  # in ``make soak``: shares take the same steps in every test run
    Kill(A, "after_receipt_stored", 3),
    Kill(A, "after_sum_signed"),
    Kill(A, "upload_midway", 3),
    Kill(A, "after_upload_written", 2),
    Kill(A, "before_lock_signed"),
    Kill(A, "after_lock_signed"),
    Kill(A, "before_release_set_stored"),
    Kill(A, "after_release_set_stored"),
    Kill(A, "before_sum_signed"),
    Kill(A, "before_output_stored"),
    Kill(A, "after_output_stored"),
    Kill(B, "after_announcement_stored", 2),
    Kill(B, "before_lock_signed"),
    Kill(B, "after_lock_signed"),
    Kill(B, "after_release_set_stored"),
    Kill(B, "before_output_stored"),
    Kill("c1", "before_update_encoded"),
    Kill("c1", "after_update_encoded"),
    Kill("c1", "after_shares_sealed"),
    Kill("c1", "upload_midway"),
    Kill("c1", "before_receipt_journalled"),
    Kill("c1", "after_output_opened"),
    Kill(REQUESTER, "after_checkpoint_written"),
    Kill(REQUESTER, "after_letter_sent"),
    Kill(REQUESTER, "before_opened_journalled"),
    Kill(REQUESTER, "after_opened_journalled"),
    Kill(REQUESTER, "after_release_sent"),
)


@pytest.mark.parametrize(
    "kill",
    [*QUICK, *(pytest.param(kill, marks=pytest.mark.soak) for kill in MORE)],
    ids=lambda kill: f"{kill.party}-{kill.point}",
)
def test_who_is_killed_comes_back_and_the_round_is_replayed(federation: Federation, kill: Kill) -> None:
    of = under_ckks(federation, f"killed-{kill.party}-{kill.point.replace('_', '-')}")
    run_killing(federation, of, [kill])
    require_released(federation, of)


# --- a site that joins late, a release set that never comes -----------------------------------------------------------


def at_both(federation: Federation, query: str, study: Study) -> list[list[tuple[object, ...]]]:
    found = []
    for side in Side:
        with closing(federation.database(side)) as database:
            found.append(database.execute(query, (study.digest(),)).fetchall())
    return found


def test_a_site_that_joins_in_round_3_gets_key_and_model_and_takes_part(federation: Federation) -> None:
    """The requester dies after round 2 and comes back when the late site has said that it is ready."""
    federation.kill(LATE)
    federation.kill(REQUESTER)
    federation.start_party(REQUESTER, "after_settled:2", start_when=2)
    study = under_ckks(federation, "late", rounds=4)
    federation.hand_in(study)
    died(federation, REQUESTER)
    federation.start_party(LATE)
    ready = "select site from ready_sites where study = ?"
    wait_for("c3 to be ready", lambda: all((LATE,) in rows for rows in at_both(federation, ready, study)))
    federation.start_party(REQUESTER, start_when=2)
    wait_for(f"the end of {study.name}", finished(federation, study.name, *SITES))
    require_released(federation, study, (EARLY, EARLY, SITES, SITES))
    late, requester = (federation.journal(site, study.name).site_state() for site in (LATE, REQUESTER))
    assert late is not None
    assert requester is not None
    assert late.ckks_key_seed == requester.ckks_key_seed
    own = read_metrics(federation.journal(LATE, study.name).folder / "metrics.jsonl")
    assert [r.round for r in own] == [3, 4]
    assert (late.finished or "").startswith("completed: all rounds are done")


@pytest.mark.slow
def test_a_release_set_that_does_not_come_skips_the_round_and_the_study_goes_on(federation: Federation) -> None:
    """The requester dies with its release set signed and not sent, and comes back after the deadline."""
    federation.kill(REQUESTER)
    federation.start_party(REQUESTER, "after_opened_journalled:1")
    study = under_ckks(federation, "unreleased", deadline_s=20.0)
    federation.hand_in(study)
    died(federation, REQUESTER)
    states = "select state from rounds where study = ? and round = 1"
    wait_for("the skip", lambda: at_both(federation, states, study) == [[("skipped",)], [("skipped",)]])
    skipped = {site: federation.journal(site, study.name).folder / "metrics.jsonl" for site in SITES[1:]}
    wait_for("the sites' records", lambda: all(len(read_metrics(path)) == 1 for path in skipped.values()))
    for path in skipped.values():
        (record,) = read_metrics(path)
        assert (record.state, record.reason, record.model_version) == (RoundEnd.SKIPPED, MISSING, 0)
    assert at_both(federation, "select state from studies where digest = ?", study) == [[("open",)], [("open",)]]
    federation.start_party(REQUESTER)
    wait_for(f"the end of {study.name}", finished(federation, study.name, *SITES))
    first, second = outcome_of(federation, study).records
    assert (first.state, first.reason, first.took_part) == (RoundEnd.SKIPPED, MISSING, ())
    assert (second.state, second.took_part) == (RoundEnd.RELEASED, SITES)
    require_model_of(federation, study, [SITES])
