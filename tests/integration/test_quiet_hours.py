"""A site with quiet hours in a study of a large model: it sends after them, or says at once that it cannot."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from client_agent.quiet_hours import LARGE_TRANSFER_BYTES
from client_agent.site.events import EventKind, RoundEnd
from harness.federation.memory.federation import InMemoryFederation
from harness.federation.memory.learners import light_learner, light_sites, light_study
from harness.federation.processes import FederationSpec
from protocol.messages.control import RuleName, RuleSpec
from protocol.policy.site_policy import SitePolicy
from tests.integration.agents import final_model, finished, rounds_of
from tests.ports import free_ports

SITES = ("requester", "c1", "c2", "c3")
POLICY = SitePolicy(least_isolation=0.0, least_contributors=2)
LARGE = LARGE_TRANSFER_BYTES // 8 + 1000


def quiet_until(running: InMemoryFederation, site: str, minutes: int) -> None:
    """In the site's settings: from a minute ago until so many minutes from now."""
    now = datetime.fromtimestamp(running.clock.now(), UTC)
    begin, end = (f"{now + timedelta(minutes=shift):%H:%M}" for shift in (-1, minutes))
    path = running.config(site)
    path.write_text(f'quiet_hours = ["{begin}-{end}"]\ntime_zone = "UTC"\n{path.read_text()}')


def test_a_large_contribution_waits_for_the_end_of_quiet_hours_or_is_declined(tmp_path: Path) -> None:
    spec = FederationSpec("quiet", SITES[0], light_sites(SITES, POLICY), seed=5, ports=free_ports())
    with InMemoryFederation(spec, tmp_path, light_learner) as running:
        study = light_study(running.parties, "trial", RuleSpec(name=RuleName.FEDAVG), rounds=1, dimension=LARGE)
        parameters = study.parameters.model_copy(update={"least_contributors": 2})
        study = study.model_copy(update={"parameters": parameters, "round_deadline_s": 600.0})
        quiet_until(running, "requester", 2)
        quiet_until(running, "c2", 4)
        quiet_until(running, "c3", 200)
        began_s = running.clock.now()
        running.start()
        running.hand_in(study)
        running.until("the end", finished(running, "trial", "requester", "c1", "c2"))
        records = rounds_of(running, "requester", "trial")
        refused = rounds_of(running, "c3", "trial")
        said = {site: running.texts(EventKind.PROBLEM, site) for site in SITES}
        assert len({final_model(running, site, "trial") for site in ("requester", "c1", "c2")}) == 1
    assert [record.took_part for record in records] == [("requester", "c1", "c2")]
    assert records[0].time_s - began_s >= 180.0  # c2 was waited for
    assert {record.state for record in refused} == {RoundEnd.DECLINED}
    assert all("quiet hours last until" in record.reason for record in refused)
    assert any("the next round waits" in text for text in said["requester"])
    assert any("the contribution to round 1 of study 'trial' (1.1 MB) waits" in text for text in said["c2"])
    assert any("a round ends after 0.2 h: in quiet hours this site is in no sum" in text for text in said["c3"])
    absent = [one for record in records for one in record.absences if one.site == "c3"]
    assert absent
    assert all("quiet_hours" in one.text for one in absent)
