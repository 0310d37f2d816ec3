"""Studies with tags over both servers: the same sums, and what becomes of who deviates (docs/protocol.md 15)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import moiety
from client_agent.requester.study import RequesterState
from client_agent.site.events import RoundEnd
from client_agent.study.transcripts import read_transcripts
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import EROSION, light_study
from protocol.arithmetic.ring import Ring
from protocol.messages.control import EndCause, RuleName, RuleSpec, ShareKind, StudyEndState
from protocol.parameters import TAG_COORDINATES
from protocol.policy.site_policy import SitePolicy
from protocol.release import combine_chunk, masking_side
from protocol.rounds.evidence import findings
from protocol.tags import attempt_key, errors_of
from servers.rounds import release
from servers.server import Server
from servers.store.records import RoundRecord
from tests.integration import wrong_tags
from tests.integration.agents import FEDAVG, changed, final_model, in_memory, journal, rounds_of, run_to_end
from tests.kit.present import present

SITES = ("requester", "c1", "c2", "c3", "c4")
DIMENSION = 12
POLICY = SitePolicy(least_isolation=0.0, least_contributors=3)


def run(
    running: InMemoryFederation, rule: RuleSpec, name: str, *, rounds: int = 1, tags: bool = True
) -> list[RoundEnd]:
    study = light_study(running.parties, name, EROSION, rounds=rounds)
    numbers = {"least_contributors": 3, "dimension": DIMENSION + rule.name.self_weighted, "weight_grid": 3}
    return [record.state for record in run_to_end(running, changed(study, tags=tags, rule=rule, **numbers))]


def state(running: InMemoryFederation, name: str) -> RequesterState:
    found = RequesterState.model_validate_json(
        (journal(running, SITES[0], name).folder / "requester.json").read_bytes()
    )
    assert found.end is not None
    return found


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(EROSION, id="distances"),
        pytest.param(RuleSpec(name=RuleName.WFEDAVG), id="counts", marks=pytest.mark.soak),
    ],
)
def test_with_tags_the_study_is_the_same(tmp_path: Path, rule: RuleSpec) -> None:
    models = set()
    with in_memory(tmp_path, SITES, POLICY) as running:
        running.start()
        for name, tags in (("plain", False), ("tagged", True)):
            ends = run(running, rule, name, rounds=2, tags=tags)
            assert set(ends) == {RoundEnd.RELEASED}
            models |= {final_model(running, site, name) for site in SITES}
            kept = read_transcripts(journal(running, "c1", name).folder / "transcripts")
            assert [len(one.goes) for one in kept] == [int(tags)] * len(ends)
            assert findings(kept, running.parties.roster.message).deviations == ()
    assert len(models) == 1


def test_a_site_with_wrong_tags_costs_a_round_and_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left out until there is a sum, asked once more after it, and then no more."""
    for module, name, instead in wrong_tags.REPLACED:
        monkeypatch.setattr(f"{module}.{name}", instead)
    with in_memory(tmp_path, SITES, POLICY) as running:
        running.start()
        ends = run(running, FEDAVG, "wrong", rounds=3)
        records = rounds_of(running, SITES[0], "wrong")
        assert ends == [RoundEnd.SKIPPED, RoundEnd.RELEASED, RoundEnd.SKIPPED]
        assert [record.failed_check for record in records] == [("c2",), (), ("c2",)]
        assert records[1].took_part == ("requester", "c1", "c3", "c4")
        assert "tags are wrong; nothing was opened" in records[0].reason
        assert state(running, "wrong").dropped == ("c2",)
        kept = read_transcripts(journal(running, SITES[0], "wrong").folder / "transcripts")
        found = findings(kept, running.parties.roster.message).deviations
        assert {one.parties for one in found} == {("c2",)}


def test_a_server_that_changes_a_sum_ends_the_study_before_anything_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alter_sums(monkeypatch, by=1)
    with in_memory(tmp_path, SITES, POLICY) as running:
        running.start()
        ends = run(running, FEDAVG, "lied", rounds=2)
        assert ends == [RoundEnd.SKIPPED]
        end = present(state(running, "lied").end)
        assert (end.message.state, end.message.cause) == (StudyEndState.FAILED, EndCause.SERVER_DEVIATED)
        assert len({final_model(running, site, "lied") for site in SITES}) == 1
        code, said = verified(running, SITES[0], "lied")
        assert (code, "round 1: operator-a or operator-b one of them signed" in said) == (3, True), said
        code, said = verified(running, "c1", "lied", "--json")
        assert (code, '"deviations": 0' in said) == (0, True), said


def test_a_server_that_forges_its_check_is_named_by_every_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It alters the sum, and once it has the seed takes the error out of its check: that is served and then found."""
    alter_sums(monkeypatch, by=1000)
    honest = release._errors_of_half

    def forged(server: Server, record: RoundRecord, seed: bytes) -> Ring:
        found = honest(server, record, seed)
        if record.committed.message.share_kind is ShareKind.VECTOR:
            error = np.zeros(DIMENSION + TAG_COORDINATES, dtype=np.uint64)
            error[0] = 1000
            key = attempt_key(record.announcement.message, record.key.attempt, seed)
            found -= errors_of(key, error.size, [lambda start, stop: error[start:stop]])[0]
        return found

    monkeypatch.setattr(release, "_errors_of_half", forged)
    with in_memory(tmp_path, SITES, POLICY) as running:
        running.start()
        ends = run(running, FEDAVG, "forged", rounds=2)
        assert ends == [RoundEnd.DISCARDED]
        assert [rounds_of(running, site, "forged")[0].state for site in SITES] == [RoundEnd.DISCARDED] * len(SITES)
        end = present(state(running, "forged").end)
        assert (end.message.state, end.message.cause) == (StudyEndState.FAILED, EndCause.SERVER_DEVIATED)
        liar = running.parties.roster.message.operator(masking_side(1).other).name
        for site in (SITES[0], "c3"):
            code, said = verified(running, site, "forged")
            assert code == 3, said
            assert f"round 1: {liar} signed a check that is not that of the half that it served" in said


def verified(running: InMemoryFederation, site: str, name: str, *more: str) -> tuple[int, str]:
    """Run ``moiety study verify`` on a site's transcripts."""
    transcripts = journal(running, site, name).folder / "transcripts"
    roster = str(running.folder / "roster.toml")
    said = CliRunner().invoke(moiety.build("study"), ["study", "verify", str(transcripts), "--roster", roster, *more])
    return said.exit_code, said.output


def alter_sums(monkeypatch: pytest.MonkeyPatch, by: int) -> None:
    """The server that adds both halves' sums adds something of its own to the first coordinate."""
    right = combine_chunk

    def wrong(masked: Ring, own: Ring) -> Ring:
        total = right(masked, own)
        total[:1] += np.uint64(by)
        return total

    monkeypatch.setattr("servers.rounds.masked_sum.combine_chunk", wrong)
