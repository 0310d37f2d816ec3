"""Alerts fire at a first event: every series that they look at is there, at 0, before anything has happened."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from protocol.errors import ErrorCode
from servers.monitoring import Metrics
from tests.deploy.containers import attempt

DASHBOARDS = Path(__file__).parents[2] / "deploy" / "dashboards"
RULES = yaml.safe_load((DASHBOARDS / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
TESTS = yaml.safe_load((DASHBOARDS / "alerts_test.yml").read_text(encoding="utf-8"))["tests"]


def labels_of(series: str) -> frozenset[tuple[str, str]]:
    """Without those that Prometheus adds."""
    found = re.findall(r'(\w+)="([^"]*)"', series)
    return frozenset(pair for pair in found if pair[0] not in ("instance", "job"))


def begun() -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The metrics of a server that has just started."""
    families = text_string_to_metric_families(Metrics().exposition().decode())
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def test_every_refusal_code_begins_at_zero() -> None:
    shown = begun()
    for code in ErrorCode:
        assert shown["moiety_refusals_total", frozenset({("code", code.value)})] == 0.0
    for outcome in ("released", "ranked", "closed", "skipped", "burnt"):
        assert shown["moiety_rounds_total", frozenset({("outcome", outcome)})] == 0.0


def test_every_counter_that_an_alert_selects_begins_at_zero() -> None:
    shown, selected = begun(), 0
    for rule in RULES:
        for name, label, operator, values in re.findall(r'(moiety_\w+_total)\{(\w+)(=~?)"([^"]+)"\}', rule["expr"]):
            for value in values.split("|") if operator == "=~" else [values]:
                selected += 1
                assert shown[name, frozenset({(label, value)})] == 0.0, rule["alert"]
    assert selected >= 7


def test_the_shipped_rule_tests_feed_series_that_a_server_has() -> None:
    shown = begun()
    for test in TESTS:
        for one in test["input_series"]:
            name = one["series"].split("{")[0]
            if name != "up":
                assert (name, labels_of(one["series"])) in shown, one["series"]


def test_every_alert_is_tested_firing_and_silent() -> None:
    cases = [case for test in TESTS for case in test["alert_rule_test"]]
    for alert in {rule["alert"] for rule in RULES}:
        assert {bool(case["exp_alerts"]) for case in cases if case["alertname"] == alert} == {True, False}, alert


def test_promtool_finds_the_rules_right() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("NOT TESTED: no promtool (Debian: apt-get install prometheus); alerts_test.yml was not run")
    done = attempt(promtool, "test", "rules", "alerts_test.yml", cwd=DASHBOARDS)
    assert done.returncode == 0, done.stdout + done.stderr
