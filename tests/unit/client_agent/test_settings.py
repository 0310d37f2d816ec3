"""A site's settings, and ``moiety doctor`` where settings, keys, data or policy are wrong."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import trustme

from client_agent.doctor import examine_site, look_at_trainer
from client_agent.settings import REMOVED, load_settings
from host.doctor import Finding, Report, Verdict
from protocol.errors import ConfigurationError
from protocol.parameters import Needs
from protocol.policy.site_policy import SitePolicy
from tests.kit.command_line import moiety
from tests.unit.client_agent.commands import own_data, write_config
from tests.unit.client_agent.federation import CONTRIBUTORS

# --- settings ---------------------------------------------------------------------------------------------------------


GOOD = """
site = "c1"
roster = "roster.toml"
keys = "keys.toml"
data = "data"
state_dir = "/var/state"
ca = "ca.pem"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(GOOD)
    return path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bootstrap_samples = true", "key 'bootstrap_samples': Input should be a valid integer, found True"),
        ('bootstrap_samples = "1"', "key 'bootstrap_samples': Input should be a valid integer, found '1'"),
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
        ('devise = "cpu"', "unknown key 'devise'; did you mean 'device'"),
        ('device = "gpu"', "key 'device': String should match pattern"),
        ("[policy]\nleast = 2", "unknown key 'policy.least'"),
        (
            "[policy]\nlargest_share = 2.0",
            "policy.largest_share': Input should be less than or equal to 1, found 2.0",
        ),
        ("device = ", "not valid TOML"),
    ],
)
def test_the_file_is_taken_as_it_is(file: Path, line: str, message: str) -> None:
    file.write_text(GOOD + line + "\n")
    with pytest.raises(ConfigurationError) as caught:
        load_settings(file)
    assert message in caught.value.detail


def test_what_is_missing_or_unknown_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_settings(file.with_name("none.toml"))
    file.write_text(GOOD.replace('ca = "ca.pem"\n', ""))
    with pytest.raises(ConfigurationError, match="key 'ca' is missing"):
        load_settings(file)
    monkeypatch.setenv("MOIETY_AGENT_DEVISE", "cpu")
    with pytest.raises(ConfigurationError, match="MOIETY_AGENT_DEVISE: no such setting"):
        load_settings(file)


def test_defaults_tables_lists_and_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(file)
    assert settings.roster == file.parent / "roster.toml"
    assert settings.state_dir == Path("/var/state")
    assert (settings.device, settings.plugin, settings.seed, settings.studies) == ("auto", None, None, "all")
    assert settings.policy == SitePolicy()
    assert settings.takes_part_in("anything")
    file.write_text(GOOD + 'studies = ["one"]\n[policy]\nleast_contributors = 5\nlargest_share = 0.5\n')
    monkeypatch.setenv("MOIETY_AGENT_DEVICE", "cpu")
    monkeypatch.setenv("MOIETY_AGENT_SITE", "c2")
    settings = load_settings(file)
    assert (settings.device, settings.site) == ("cpu", "c2")
    assert settings.policy == SitePolicy(least_contributors=5, largest_share=0.5)
    assert settings.takes_part_in("one")
    assert not settings.takes_part_in("two")


@pytest.mark.parametrize("key", REMOVED)
def test_a_setting_of_an_earlier_release_is_refused_with_what_holds_instead(file: Path, key: str) -> None:
    table, _, name = key.rpartition(".")
    file.write_text(GOOD + (f"[{table}]\n" if table else "") + f"{name} = 64\n")
    with pytest.raises(ConfigurationError) as refused:
        load_settings(file)
    assert refused.value.detail == f"{file}: key '{key}' is no setting any more: take it out; {REMOVED[key]}"


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
    file.write_text(GOOD + "bootstrap_samples = 2\n[policy]\nassumed_colluders = 1\n")
    variables = {"BOOTSTRAP_SAMPLES": "5", "START_WHEN": "3", "SEED": "-7", "POLICY__LEAST_CONTRIBUTORS": "4"}
    for name, value in variables.items():
        monkeypatch.setenv(f"MOIETY_AGENT_{name}", value)
    settings = load_settings(file)
    assert (settings.bootstrap_samples, settings.start_when, settings.seed) == (5, 3, -7)
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


@pytest.mark.parametrize("value", ["true", "soon", "nan", "-1"])
def test_what_is_no_number_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("MOIETY_AGENT_BOOTSTRAP_SAMPLES", value)
    with pytest.raises(ConfigurationError, match="key 'bootstrap_samples'"):
        load_settings(file)


# --- site doctor ------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Path:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    own_data(tmp_path)
    return write_config(tmp_path)


def found(config: Path) -> dict[str, Finding]:
    return {one.check: one for one in examine_site(config).findings}


def test_what_can_be_seen_without_a_server(config: Path) -> None:
    seen = found(config)
    for check in ("settings", "versions", "CA file", "device", "data", "roster and keys", "two operators"):
        assert seen[check].verdict is Verdict.OK, seen[check]
    assert f"{len(CONTRIBUTORS)} contributors" in seen["roster and keys"].found
    assert not any(check.endswith("this site's key") for check in seen)
    assert "trainer" not in seen


def test_settings_that_cannot_be_read_are_all_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text("site = 3\n")
    (only,) = examine_site(tmp_path / "wrong.toml").findings
    assert (only.check, only.verdict) == ("settings", Verdict.FAILED)


def test_each_wrong_thing_is_named(config: Path, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    (tmp_path / "data" / "train.npz").unlink()
    more = f'device = "cuda:7"\n[policy]\nassumed_colluders = {len(CONTRIBUTORS)}\n'
    config.write_text(config.read_text() + more)
    seen = found(config)
    assert "holds no certificates in PEM" in seen["CA file"].found
    assert "has no train.npz" in seen["data"].found
    assert "'cuda:7' was asked for" in seen["device"].found
    assert "(NOT FEDERATED)" in seen["policy"].found
    (tmp_path / "keys.toml").chmod(0o644)
    seen = found(config)
    assert "chmod 600" in seen["roster and keys"].found
    (tmp_path / "ca.pem").unlink()
    missing = found(config)["CA file"].found
    assert "there is no such file" in missing
    assert "PEM" not in missing


def test_the_command_ends_with_a_status_and_speaks_json(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert moiety("doctor", "--config", str(config), "--json") == 1
    assert not Report.model_validate_json(capsys.readouterr().out).healthy
    assert moiety("doctor", "--config", str(config)) == 1
    assert "FAIL server a" in capsys.readouterr().out


def test_without_a_file_it_looks_at_what_is_configured_here(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings in the working folder; none of a folder below, which anybody may have put there."""
    below = tmp_path / "all" / "clinic-1"
    below.mkdir(parents=True)
    (below / "settings.toml").write_text(config.read_text())
    monkeypatch.setattr("moiety._IN_A_CONTAINER", tmp_path / "etc" / "settings.toml")
    monkeypatch.chdir(tmp_path / "all")
    assert moiety("doctor") == 2
    assert "name a server's or an agent's settings with --config" in capsys.readouterr().err
    monkeypatch.chdir(below)
    assert moiety("doctor", "--json") == 1
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize("others_write", ["the file", "the folder", "a link"])
def test_a_file_that_others_may_have_written_is_not_run(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, others_write: str
) -> None:
    """Programs that settings name are run: a trainer's interpreter, with this person's environment."""
    ran, here = tmp_path / "ran", tmp_path / "shared"
    here.mkdir()
    program = here / "python"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    written = here / "settings.toml"
    written.write_text(f'{config.read_text()}\n[trainer]\nkind = "python"\npython = "python"\nprogram = "python"\n')
    if others_write == "a link":
        written.rename(here / "other.toml")
        written.symlink_to("other.toml")
    else:
        (written if others_write == "the file" else here).chmod(0o777)
    monkeypatch.chdir(here)
    assert moiety("doctor") == 2
    assert "then name it with --config" in capsys.readouterr().err
    assert not ran.exists()


FUNCTION = "def app(parameters, task): return parameters\n"


def of_trainer(config: Path, kind: str = "python", python: str = sys.executable) -> Finding:
    """The doctor's finding on the site's own trainer, ``site.py`` beside the settings."""
    text = f'\n[trainer]\nkind = "{kind}"\npython = "{python}"\nprogram = "site.py"\n'
    config.write_text(config.read_text() + text)
    return look_at_trainer(load_settings(config).trainer)


@pytest.mark.parametrize(
    ("kind", "program", "verdict", "said"),
    [
        ("python", FUNCTION, Verdict.OK, ", numpy "),
        ("python", f"print('a patient')\n{FUNCTION}", Verdict.OK, "is tried when one is there"),
        ("python", "other = 1\n", Verdict.FAILED, "has no 'app': add a line such as: app = my_function"),
        ("python", "def app(:\n", Verdict.FAILED, "SyntaxError"),
        ("python", "import os\nos._exit(3)\n", Verdict.FAILED, "ended with exit code 3 before it said anything"),
        ("python", "import os\nprint(7)\nos._exit(3)\n", Verdict.FAILED, "ended with exit code 3"),
        ("python", None, Verdict.FAILED, "key 'trainer.program': "),
        ("flower", "app = None\n", Verdict.FAILED, "No module named 'flwr'"),
    ],
)
def test_a_trainer_of_its_own_is_looked_at(
    config: Path, tmp_path: Path, kind: str, program: str | None, verdict: Verdict, said: str
) -> None:
    if program is not None:
        (tmp_path / "site.py").write_text(program)
    if kind == "flower" and importlib.util.find_spec("flwr") is not None:
        pytest.skip("Flower is installed beside Moiety here")
    seen = of_trainer(config, kind)
    assert seen.verdict is verdict, seen
    assert said in seen.found
    assert verdict is Verdict.OK or seen.fix
    assert "a patient" not in seen.found


def test_a_trainer_that_trains_at_import_is_given_up(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client_agent.doctor._LOADS_WITHIN_S", 0.2)
    (tmp_path / "site.py").write_text("import time\ntime.sleep(600)\n")
    seen = of_trainer(config)
    assert seen.verdict is Verdict.FAILED
    assert "not loaded within 0.2 s" in seen.found


def test_an_interpreter_that_is_none_is_named(config: Path, tmp_path: Path) -> None:
    (tmp_path / "site.py").write_text(FUNCTION)
    seen = of_trainer(config, python="site.py")
    assert (seen.verdict, seen.fix) == (Verdict.FAILED, "name an interpreter of Python")
    assert found(config)["trainer"] == seen
