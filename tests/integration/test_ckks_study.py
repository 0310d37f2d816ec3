"""Studies under CKKS over real processes: as the plain run within the stated error, and no key at a server."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from client_agent.site.journal import SiteState
from protocol.ckks.ciphertext import CkksParameters
from protocol.ckks.scheme import Scheme
from protocol.messages.control import RuleName, RuleSpec, Study, StudyProtection
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from tests.integration.crashes import (
    REQUESTER,
    ROUNDS,
    SITES,
    A,
    B,
    Kill,
    Outcome,
    crash_federation,
    light_study_of,
    run_killing,
)
from tests.kit.bounds.regression_facts import UNIT, RoundFacts, encryption_error
from tests.kit.present import present
from tests.kit.processes import Federation

pytest.importorskip("tenseal")
FEDAVG = RuleSpec(name=RuleName.FEDAVG)
WILLING = SitePolicy(least_isolation=0.0, allow_ckks=True)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with crash_federation(tmp_path_factory.mktemp("ckks"), policy=WILLING) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(federation: Federation) -> np.ndarray:
    """The model that the same study leaves under shares: to the bit the plain one, its updates lie on the grid."""
    plain = light_study_of(federation, "under-shares").model_copy(update={"rule": FEDAVG})
    return np.frombuffer(run_killing(federation, plain).models[0], dtype="<f4")


def under_ckks(federation: Federation, name: str) -> Study:
    changes = {"rule": FEDAVG, "protection": StudyProtection.CKKS}
    return light_study_of(federation, name).model_copy(update=changes)


def assert_as_plain(outcome: Outcome, of: Study, undisturbed: np.ndarray) -> None:
    """Every site has one and the same model, off from the plain one by the encryption's error and float32's.

    The sites' updates are rounded to multiples of 1/256; their points, fixed by a seed, lie far enough from the middle
    of two that a difference below 1e-6 changes none. So both rounds add an error of their own and amplify nothing.
    """
    assert len(set(outcome.models)) == 1
    released = [record for record in outcome.records if record.state == "released"]
    assert [record.took_part for record in released] == [SITES] * ROUNDS
    model = np.frombuffer(outcome.models[0], dtype="<f4")
    step, clip_norm = of.training.server_learning_rate, of.parameters.clip_norm
    facts = RoundFacts(len(SITES), float(len(SITES)), 1.0, 1.0, 1.0, 1.0, False, rounded=False)
    rounding = 2 * UNIT * (3 * step * clip_norm + float(np.linalg.norm(undisturbed)) + 1)
    allowed = ROUNDS * (step * encryption_error(facts, of.parameters) + rounding)
    assert allowed < 1e-5
    assert np.linalg.norm(model.astype(np.float64) - undisturbed) <= allowed  # float32 may round the noise away


# --- a whole study, and what is left of it ----------------------------------------------------------------------------


def test_a_study_equals_the_plain_one_and_no_server_has_the_key(
    federation: Federation, undisturbed: np.ndarray
) -> None:
    of = under_ckks(federation, "whole")
    with Stored([federation.folder / name for name in (A, B)]) as stored:
        assert_as_plain(run_killing(federation, of), of, undisturbed)
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
def test_who_is_killed_comes_back_and_the_round_is_replayed(
    federation: Federation, undisturbed: np.ndarray, kill: Kill
) -> None:
    of = under_ckks(federation, f"killed-{kill.party}-{kill.point.replace('_', '-')}")
    assert_as_plain(run_killing(federation, of, [kill]), of, undisturbed)
