"""Numbers in the settings: strict in the file, converted from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.settings import load_settings
from protocol.errors import ConfigurationError
from protocol.parameters import Needs
from tests.unit.client_agent.test_state import GOOD


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(GOOD)
    return path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("poll_s = true", "key 'poll_s': Input should be a valid number, found True"),
        ('poll_s = "1"', "key 'poll_s': Input should be a valid number, found '1'"),
        ('stuck_timeout_s = "1"', "key 'stuck_timeout_s': Input should be a valid number, found '1'"),
        ("start_when = true", "key 'start_when': Input should be 'all' or a valid integer, found True"),
        ('start_when = "2"', "key 'start_when': Input should be 'all' or a valid integer, found '2'"),
        ("start_when = 0", "key 'start_when': Input should be 'all' or greater than or equal to 1, found 0"),
        ("seed = true", "key 'seed': Input should be a valid integer, found True"),
        (
            '[policy]\nmay_open = ["distance"]',
            "key 'policy.may_open.0': Input should be 'nothing', 'distances', 'norms', 'weighted_norms', 'pairs' or "
            "'inner_products', found 'distance'",
        ),
        ('[policy]\nmay_open = "pairs"', "key 'policy.may_open': Input should be a valid tuple, found 'pairs'"),
        ('[policy]\nleast_contributors = "4"', "key 'policy.least_contributors': Input should be a valid integer"),
    ],
)
def test_the_file_is_taken_as_it_is(file: Path, line: str, message: str) -> None:
    file.write_text(GOOD + line + "\n")
    with pytest.raises(ConfigurationError) as caught:
        load_settings(file)
    assert message in caught.value.detail


def test_a_whole_number_of_seconds_is_a_number(file: Path) -> None:
    file.write_text(GOOD + "poll_s = 2\nstart_when = 3\n")
    settings = load_settings(file)
    assert (settings.poll_s, settings.start_when) == (2.0, 3)


def test_what_a_rule_may_open_is_named_in_the_file_or_in_the_environment(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = (Needs.DISTANCES, Needs.NORMS, Needs.PAIRS, Needs.INNER_PRODUCTS)
    assert load_settings(file).policy.may_open == everything
    file.write_text(GOOD + '[policy]\nmay_open = ["norms", "pairs"]\n')
    assert load_settings(file).policy.may_open == (Needs.NORMS, Needs.PAIRS)
    file.write_text(GOOD + "[policy]\nmay_open = []\n")
    assert load_settings(file).policy.may_open == ()
    monkeypatch.setenv("MOIETY_AGENT_POLICY__MAY_OPEN", '["distances"]')
    assert load_settings(file).policy.may_open == (Needs.DISTANCES,)


def test_numbers_in_the_environment_are_converted(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(GOOD + "poll_s = 2\n[policy]\nassumed_colluders = 1\n")
    variables = {"POLL_S": "0.5", "START_WHEN": "3", "SEED": "-7", "POLICY__LEAST_CONTRIBUTORS": "4"}
    for name, value in variables.items():
        monkeypatch.setenv(f"MOIETY_AGENT_{name}", value)
    settings = load_settings(file)
    assert (settings.poll_s, settings.start_when, settings.seed) == (0.5, 3, -7)
    assert (settings.policy.least_contributors, settings.policy.assumed_colluders) == (4, 1)
    monkeypatch.setenv("MOIETY_AGENT_START_WHEN", "all")
    monkeypatch.setenv("MOIETY_AGENT_SITE", "12")
    settings = load_settings(file)
    assert (settings.start_when, settings.site) == ("all", "12")


def test_a_switch_is_true_or_false_in_the_file_or_in_the_environment(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(GOOD)
    assert load_settings(file).policy.allow_ckks is False
    file.write_text(GOOD + "[policy]\nallow_ckks = true\n")
    assert load_settings(file).policy.allow_ckks is True
    monkeypatch.setenv("MOIETY_AGENT_POLICY__ALLOW_CKKS", "false")
    assert load_settings(file).policy.allow_ckks is False
    monkeypatch.setenv("MOIETY_AGENT_POLICY__ALLOW_CKKS", "1")
    with pytest.raises(ConfigurationError, match=r"key 'policy.allow_ckks'"):
        load_settings(file)


@pytest.mark.parametrize("value", ["true", "soon", "nan", "0"])
def test_what_is_no_number_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("MOIETY_AGENT_POLL_S", value)
    with pytest.raises(ConfigurationError, match="key 'poll_s'"):
        load_settings(file)
