"""Traces say which phase of a round took how long, and nothing about a study; nobody has any who did not ask."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import EROSION, light_learner
from protocol.errors import ConfigurationError
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from servers.monitoring import Metrics, Phases, Traces, round_traces, traces_to
from tests.integration.agents import REQUESTER, finished, spec, study_for
from tests.kit.present import present

SITES = ("c1", "c2", "c3")


@pytest.fixture
def kept() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def test_a_round_is_one_trace_with_its_phases(kept: InMemorySpanExporter) -> None:
    now = [100.0]
    phases = Phases(Metrics(), lambda: now[0], round_traces(Side.A, SimpleSpanProcessor(kept)))
    for _ in range(2):
        phases.mark("digest", "announced")
        now[0] += 2.5
        phases.observe("digest", "announced", "collecting")
        phases.mark("digest", "locked")
        now[0] += 1.5
        phases.observe("digest", "locked", "lock_to_release")
        phases.observe("digest", "measured", "never marked")
        phases.forget("digest")
        phases.forget("digest")
    spans = kept.get_finished_spans()
    assert [span.name for span in spans] == ["collecting", "lock_to_release", "round"] * 2
    first, second, whole = spans[:3]
    assert (first.start_time, first.end_time) == (100 * 10**9, 102_500_000_000)
    assert (second.start_time, second.end_time) == (102_500_000_000, 104 * 10**9)
    assert (whole.start_time, whole.end_time, whole.parent) == (100 * 10**9, 104 * 10**9, None)
    for part in (first, second):
        assert present(part.parent).span_id == whole.context.span_id
    assert len({span.context.trace_id for span in spans}) == 2


def test_a_studys_traces_hold_phases_and_nothing_else(
    tmp_path: Path, kept: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Side] = []

    def into_memory(endpoint: str | None, side: Side) -> Traces:
        assert endpoint is None
        made.append(side)
        return round_traces(side, SimpleSpanProcessor(kept))

    monkeypatch.setattr("servers.server.traces_to", into_memory)
    policies = {site: SitePolicy(least_isolation=0.0) for site in SITES}
    with InMemoryFederation(spec(policies), tmp_path, light_learner) as federation, federation.agents():
        federation.hand_in(study_for(federation, "traced", EROSION, 2, 60.0))
        federation.until("the end", finished(federation, "traced", REQUESTER, *SITES))
        federation.until("both rounds' ends at side A", lambda: named(kept).count("round") >= 2)
    spans = kept.get_finished_spans()
    assert sorted(made) == list(Side)
    assert named(kept).count("round") == 2
    phases = {"collecting", "measuring", "waiting_for_release_set", "lock_to_release", "round"}
    assert {span.name for span in spans} == phases
    assert all(not span.attributes and not span.events and not span.links for span in spans)
    (resource,) = {tuple(sorted(span.resource.attributes.items())) for span in spans}
    assert resource == (("moiety.side", "a"), ("service.name", "moiety-server"))


def named(kept: InMemorySpanExporter) -> list[str]:
    return [span.name for span in kept.get_finished_spans()]


def test_without_a_collector_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "__import__", without("opentelemetry"))
    traces = traces_to(None, Side.A)
    assert traces.provider is None
    traces.phase("digest", "collecting", 0.0, 1.0)
    traces.round_over("digest", 1.0)
    traces.close()
    with pytest.raises(
        ConfigurationError, match="pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
    ):
        traces_to("http://127.0.0.1:4318/v1/traces", Side.A)


def without(package: str) -> Callable[..., Any]:
    real = builtins.__import__
    for name in [name for name in sys.modules if name.startswith("opentelemetry.exporter")]:
        del sys.modules[name]

    def imported(name: str, *more: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == package:
            raise ImportError(name)
        return real(name, *more)

    return imported


def test_a_collector_that_does_not_answer_keeps_nobody_waiting() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    traces = traces_to("http://127.0.0.1:9/v1/traces", Side.B)
    assert traces.provider is not None
    traces.round_over("never begun", 1.0)
    traces.close()
