"""An auditor's four questions on a finished study, asked of a site's and of a server's folder by command."""

from __future__ import annotations

import json
import re
from datetime import date
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_agent.cli.agent import app as agent_app
from client_agent.site.events import EventKind
from client_agent.study.approval import Approval, give
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import light_learner
from host.audit_command import app as audit_app
from host.audit_log import AuditLog
from protocol.errors import ConfigurationError
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from servers.cli import app as server_app
from servers.settings import load_settings
from tests.integration.agents import FEDAVG, REQUESTER, finished, journal, spec, study_for

STUDY = "audited"
SITES = ("c1", "c2", "c3")


def answers(folder: Path) -> str:
    return CliRunner().invoke(audit_app, ["answers", STUDY, str(folder)], catch_exceptions=False).stdout


def part(text: str, question: str) -> str:
    found = re.search(rf"^  {question}\n((?:    .*\n)*)", text, re.MULTILINE)
    assert found is not None, text
    return found[1]


def approve_until(federation: InMemoryFederation, site: str, last_day: date) -> None:
    """Approve until a time by the federation's clock, which is not the machine's."""
    kept = journal(federation, site, STUDY)
    digest = study_for(federation, STUDY, FEDAVG, 2).digest()
    word = Approval(
        study=STUDY, study_digest=digest, approved=True, person="Dr. B", reason="permit 9", time_s=0.0, until=last_day
    )
    give(federation.state(site), kept, word, AuditLog(federation.state(site), site, federation.clock.now))


def test_the_four_questions_are_answered_after_the_study_and_its_deletion(tmp_path: Path) -> None:
    policies = {site: SitePolicy(least_isolation=0.0) for site in SITES}
    with InMemoryFederation(spec(policies), tmp_path, light_learner) as federation:
        asked = federation.config("c1")
        asked.write_text(asked.read_text().replace('approve = "policy"', 'approve = "manual"'))
        with federation.agents():
            federation.hand_in(study_for(federation, STUDY, FEDAVG, 2))
            waits = "waits for a person"
            federation.until("c1 asks", lambda: any(waits in text for text in federation.texts(EventKind.STUDY, "c1")))
            words = ["approve", STUDY, "--person", "Dr. A", "--reason", "permit 7", "--yes", "--config", str(asked)]
            assert CliRunner().invoke(agent_app, words).exit_code == 0
            federation.until("the end", finished(federation, STUDY, REQUESTER, *SITES))
        approve_until(federation, "c2", date(2000, 1, 1))
        with federation.agents("c2"):
            receipt = journal(federation, "c2", STUDY).folder / "deletion.json"
            federation.until("c2 deletes by itself", receipt.exists)
        operators = [federation.parties.roster.message.operator(side).name for side in Side]
        servers = {name: federation.config(name) for name in operators}
    gone = ["delete", STUDY, "--person", "Dr. A", "--reason", "permit 7 ended", "--config", str(asked)]
    assert CliRunner().invoke(agent_app, gone).exit_code == 0
    at_site = answers(federation.state("c1"))
    assert re.search(r"Dr\. A at c1 .* audited approved: permit 7\n", part(at_site, "Who approved what, and when"))
    left = part(at_site, "What left, by round")
    assert [int(n) > 0 for n in re.findall(r"round \d+ round: released.*; (\d+) bytes sent", left)] == [True, True]
    deleted = part(at_site, "What was deleted")
    assert re.search(r"Dr\. A at c1 .* deleted: permit 7 ended; \d+ files, receipt [0-9a-f]{64}\n", deleted)
    assert f"the receipt is {journal(federation, 'c1', STUDY).folder / 'deletion.json'}" in deleted
    assert f"    {version('moiety')}, " in part(at_site, "Which release ran")
    assert "software at c2" in part(answers(federation.state("c2")), "What was deleted")
    asked_nobody = r"software at c2 .* audited approved: no person is asked here \(approve = \"policy\"\); the policy: "
    allowed = part(answers(federation.state("c2")), "Who approved what, and when")
    assert len(re.findall(asked_nobody + r'.*"least_isolation":0\.0', allowed)) == 1, "once, though c2 started twice"

    for name, config in servers.items():
        data_dir = load_settings(config).data_dir
        shares = data_dir / "shares"
        assert list(shares.iterdir()), "outputs are kept until they are deleted"
        gone = ["delete", STUDY, "--person", "Dr. O", "--reason", "permit 7 ended", "--config", str(config)]
        assert CliRunner().invoke(server_app, gone).exit_code == 0
        assert list(shares.iterdir()) == []
        at_server = answers(data_dir)
        assert "study_registered" in part(at_server, "Who approved what, and when")
        assert "released; contributed: c1, c2, c3, requester; summed: " in part(at_server, "What left, by round")
        assert f"Dr. O at {name}" in part(at_server, "What was deleted")
        assert f"the receipt is {data_dir / 'deletions' / STUDY}.json" in at_server
    path = load_settings(servers[operators[0]]).data_dir / "deletions" / f"{STUDY}.json"
    content = json.loads(path.read_bytes())
    content["message"]["person"] = "Dr. X"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match="is not the receipt that entry"):
        answers(path.parents[1])
    path.unlink()
    with pytest.raises(ConfigurationError, match="cannot be read: restore it"):
        answers(path.parents[1])
    with pytest.raises(ConfigurationError, match="names no study 'other'"):
        CliRunner().invoke(audit_app, ["answers", "other", str(path.parents[1])], catch_exceptions=False)
