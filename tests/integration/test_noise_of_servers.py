"""Studies whose servers add noise to every sum: they end, one count a round, a budget that stops them (section 21)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from client_agent.learning.learner import Learner, Vector
from client_agent.settings import AgentSettings
from client_agent.site.budget.accounting import Steps
from client_agent.site.budget.spent_budget import SpentOfUnit, budget_memory
from client_agent.site.events import RoundEnd
from harness.federation.memory.federation import InMemoryFederation
from harness.federation.memory.learners import Learners, LightLearner, light_learner, light_sites, light_study
from harness.federation.processes import FederationSpec, SiteSpec
from protocol.arithmetic.discrete_gaussian import NoiseStream
from protocol.clauses import Clause
from protocol.policy.site_policy import SitePolicy
from protocol.wire.messages import EndCause, PrivacySpec, RuleName, RuleSpec, Study, StudyEndState
from tests.integration.agents import finished, journal, rounds_of
from tests.integration.test_privacy_budget import DELTA, SITES, end_of, run
from tests.ports import free_ports
from tests.unit.client_agent.test_spent_budget import smallest_budget

OPEN = SitePolicy(least_contributors=2, largest_share=1.0)
NOISE = 2.0
SERVERS = ("a", "b")


def budget(rounds: int) -> SitePolicy:
    epsilon = smallest_budget([Steps(1.0, NOISE, rounds)], DELTA)
    return OPEN.model_copy(update={"delta": DELTA, "epsilon": epsilon, "privacy_unit": "site"})


def federation(folder: Path, learner: Learners = light_learner, **policies: SitePolicy) -> InMemoryFederation:
    sites = light_sites(SITES, OPEN)
    chosen = tuple(SiteSpec(one.name, one.data, policies.get(one.name, one.policy)) for one in sites)
    return InMemoryFederation(FederationSpec("hidden", SITES[0], chosen, seed=5, ports=free_ports()), folder, learner)


def hidden(running: InMemoryFederation, name: str, rounds: int) -> Study:
    study = light_study(running.parties, name, RuleSpec(name=RuleName.FEDAVG), rounds=rounds)
    return Study.model_validate({**study.model_dump(), "privacy": PrivacySpec(unit="site", noise_multiplier=NOISE)})


def spent(running: InMemoryFederation, site: str) -> SpentOfUnit:
    return budget_memory(running.state(site), running.parties.keys_of(site).party().signing_key).of_unit("site")


def test_every_site_opens_the_same_sums_with_noise_and_a_budget_is_kept_across_studies(tmp_path: Path) -> None:
    with federation(tmp_path, c1=budget(5)) as running:
        running.start()
        run(running, hidden(running, "first", 3))
        assert end_of(running, "first")[0] is StudyEndState.COMPLETED
        records = rounds_of(running, SITES[0], "first")
        assert [one.state for one in records] == [RoundEnd.RELEASED] * 3
        models = [journal(running, site, "first").load_model(3) for site in SITES]
        assert all(np.array_equal(models[0], one) for one in models)
        plain = light_study(running.parties, "plain", RuleSpec(name=RuleName.FEDAVG), rounds=3)
        run(running, hidden(running, "second", 3))
        assert end_of(running, "second") == (StudyEndState.FAILED, EndCause.STUDY_REFUSED, Clause.BUDGET_SPENT, "c1")
        counted = [(one.study, one.round) for one in spent(running, "c1").trainings]
        assert counted == [("first", 1), ("first", 2), ("first", 3)]
        clip, weights = plain.parameters.clip_norm, 1 + len(SITES[1:])
        per_round = 0.5 * np.sqrt(2) * NOISE * clip / weights
        assert 0.4 * per_round * np.sqrt(3) < float(np.std(models[0])) < 2.5 * per_round * np.sqrt(3)


def test_what_servers_hold_of_noise_is_forgotten_with_the_shares(tmp_path: Path) -> None:
    with federation(tmp_path) as running:
        running.start()
        study = hidden(running, "kept", 2)
        running.hand_in(study)
        running.until("the end", finished(running, "kept", *SITES))
    found = [_secrets(path) for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes()[:6] == b"SQLite"]
    held = [one for one in found if one]
    assert len(held) == len(SERVERS)
    assert [[secret for _, secret in rows] for rows in held] == [[None, None]] * len(SERVERS)


class _Broken(LightLearner):
    """An update of nothing but ``shown`` in the first round."""

    shown = 0.0

    def update(self, model: Vector, round_number: int) -> Vector:
        whole = super().update(model, round_number)
        return np.full_like(whole, self.shown) if round_number == 1 else whole


_NO_NUMBERS = {"c1": float("nan"), SITES[0]: float("inf")}


def _broken_or_zeros(settings: AgentSettings, study: Study, seed: int) -> Learner:
    """c1 and the requester: no number in study "broken", zeros in any other."""
    if settings.site not in _NO_NUMBERS:
        return light_learner(settings, study, seed)
    made = _Broken(study, SITES.index(settings.site))
    made.shown = _NO_NUMBERS[settings.site] if study.name == "broken" else 0.0
    return made


def test_an_update_that_is_no_number_is_shared_as_zeros_and_nobody_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site that stayed away because of its numbers would say something about them without noise.

    The servers' draws are taken to be zero here, so that the sums can be compared to the bit.
    """
    monkeypatch.setattr(NoiseStream, "take", lambda self, count: np.zeros(count, np.int64))
    with federation(tmp_path, _broken_or_zeros) as running:
        running.start()
        for name in ("broken", "zeros"):
            run(running, hidden(running, name, 2))
            assert end_of(running, name)[0] is StudyEndState.COMPLETED
            records = rounds_of(running, SITES[0], name)
            assert [one.state for one in records] == [RoundEnd.RELEASED] * 2
            assert [set(one.took_part) for one in records] == [set(SITES)] * 2
        models = {
            name: [journal(running, SITES[0], name).load_model(n) for n in (1, 2)] for name in ("broken", "zeros")
        }
    assert all(np.isfinite(model).all() and model.any() for model in models["broken"])
    assert all(np.array_equal(*pair) for pair in zip(models["broken"], models["zeros"], strict=True))


def _secrets(path: Path) -> list[tuple[int, bytes | None]]:
    with closing(sqlite3.connect(path)) as database:
        if not database.execute("select 1 from sqlite_master where name = 'rounds'").fetchall():
            return []
        return database.execute("select round, noise_secret from rounds").fetchall()
