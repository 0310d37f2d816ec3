"""``moiety study verify``: what it says of transcripts, together and alone, and of files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import moiety
from harness.adversaries.scripted_agents import PARTIES, REQUESTER
from harness.adversaries.tagged_round import TaggedRound
from protocol.errors import ConfigurationError
from protocol.messages.control import sign
from protocol.roster.keyfile import dump_roster
from protocol.rounds.evidence import RoundTranscript


@pytest.fixture
def roster(tmp_path: Path) -> Path:
    path = tmp_path / "roster.toml"
    path.write_text(dump_roster(PARTIES.roster))
    return path


def kept(folder: Path, site: str = "c1", *, other: bool = False, study: str = "") -> Path:
    """One site's transcript of an honest round, or one with another release set in it."""
    turn = TaggedRound()
    release = turn.release.model_copy(update={"sites": turn.release.sites[:-1]} if other else {})
    one = RoundTranscript(
        study_digest=study or turn.study.digest(),
        round=1,
        attempt=1,
        kept_by=site,
        release_sets=(sign(release, REQUESTER, PARTIES.keys_of(REQUESTER).signing),),
    )
    folder.mkdir()
    (folder / "round-000001-01.json").write_text(one.model_dump_json())
    return folder


def verify(*arguments: str | Path) -> Result:
    return CliRunner().invoke(moiety.build("study"), ["study", "verify", *map(str, arguments)])


def test_one_sites_transcript_shows_nothing_and_two_together_the_requester(tmp_path: Path, roster: Path) -> None:
    first, second = kept(tmp_path / "c1"), kept(tmp_path / "c2", "c2", other=True)
    for alone in (first, second, second / "round-000001-01.json"):
        said = verify(alone, "--roster", roster)
        assert (said.exit_code, "nobody deviated by what is signed" in said.output) == (0, True), said.output
    said = verify(first, second, "--roster", roster)
    assert said.exit_code == 3
    assert f"round 1: {REQUESTER} signed two different messages where there is one: release_set" in said.output
    assert "show these lines to both operators" in said.output


def test_for_a_program(tmp_path: Path, roster: Path) -> None:
    first, second = kept(tmp_path / "c1"), kept(tmp_path / "c2", "c2", other=True)
    said = verify(first, second, "--roster", roster, "--json")
    deviation, total = (json.loads(line) for line in said.output.splitlines())
    assert (deviation["round"], deviation["parties"]) == (1, [REQUESTER])
    assert total == {"transcripts": 2, "signatures": 2, "deviations": 1}


def test_a_forged_signature_is_listed(tmp_path: Path, roster: Path) -> None:
    place = kept(tmp_path / "c1")
    file = place / "round-000001-01.json"
    value = json.loads(file.read_text())["release_sets"][0]["signatures"][0]["value"]
    file.write_text(file.read_text().replace(value, "00" * 64))
    said = verify(place, "--roster", roster)
    assert said.exit_code == 0
    assert f"proves nothing: round 1: release_set has no valid signature of {REQUESTER}" in said.output


@pytest.mark.parametrize(
    ("content", "says"), [("{}", "is not a transcript of a round"), (None, "no transcript of a round is here")]
)
def test_files_that_are_no_transcripts_say_what_to_take(
    tmp_path: Path, roster: Path, content: str | None, says: str
) -> None:
    if content is not None:
        (tmp_path / "round-000001-01.json").write_text(content)
    said = verify(tmp_path, "--roster", roster)
    assert isinstance(said.exception, ConfigurationError)
    assert says in said.exception.detail


def test_two_studies_are_not_verified_together(tmp_path: Path, roster: Path) -> None:
    said = verify(kept(tmp_path / "c1"), kept(tmp_path / "c2", study="cd" * 32), "--roster", roster)
    assert isinstance(said.exception, ConfigurationError)
    assert "of 2 studies" in said.exception.detail
