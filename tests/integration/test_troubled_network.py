"""A study in memory over a slow and lossy network: time passes while its agents wait, and it ends as it would have."""

from __future__ import annotations

from pathlib import Path

from harness.attack.troubled_study import NAME, SITES, Plan, Troubled, federation, study_of
from harness.federation.network import Fate
from protocol.messages.control import RuleName, RuleSpec
from tests.integration.agents import final_model, finished

PLAN = Plan(RuleSpec(name=RuleName.FEDAVG))


def test_messages_that_come_late_or_not_at_all_change_no_bit_and_cost_their_own_time(tmp_path: Path) -> None:
    """Held requests of both servers at once, as of a share and its other half, must let time pass."""
    models, times_s = set[bytes](), list[float]()
    network = Troubled(
        lambda drawn, passing: Fate(
            held_s=drawn.uniform(1, 5), answer_held_s=drawn.uniform(0, 2), answer_arrives=drawn.random() > 0.1
        ),
        seed=1,
    )
    for over in (None, network):
        with federation(tmp_path / f"{over is None}", over) as running:
            running.hand_in(study_of(running, PLAN))
            running.start()
            running.until("the end", finished(running, NAME, *SITES))
            models |= {final_model(running, site, NAME) for site in SITES}
            times_s.append(running.clock.monotonic())
    assert len(models) == 1
    assert times_s[0] + 10 < times_s[1]
    assert network.injected["answer lost"] > 3
