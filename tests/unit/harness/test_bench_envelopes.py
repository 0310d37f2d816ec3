"""``moiety bench envelopes``: what counts as a control request, the page, and one tiny run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_agent.network.ledger import LedgerEntry
from harness.bench.cli import app
from harness.bench.envelope_results import (
    ControlTraffic,
    EnvelopesBenchmark,
    RequestCost,
    Spread,
    ViewCost,
    envelopes_text,
)
from harness.bench.envelopes import control_traffic
from harness.bench.report import page_of
from harness.bench.results import write_result
from harness.bench.views import made_view
from harness.engine.parties import SiteEntry, make_parties
from protocol.sharing import Side
from protocol.wire.authentic import require_signatures
from protocol.wire.messages import StudyView
from tests.unit.harness.test_bench import a_result as a_round


def entry(purpose: str, up: int = 100, down: int = 1000) -> LedgerEntry:
    return LedgerEntry(
        time_s=1.0,
        server="operator-a",
        method="POST",
        path="/v1/sealed",
        purpose=purpose,
        status=200,
        body_sent_bytes=0,
        body_received_bytes=0,
        socket_sent_bytes=up,
        socket_received_bytes=down,
        tls_version="TLSv1.3",
    )


def test_control_requests_are_counted_by_purpose_a_site_and_round() -> None:
    entries = [entry("view"), entry("view"), entry("mail weights-2"), entry("mail weights-13")]
    kinds = ("contribution", "output", "list studies", "handshake", "connection", "mail checkpoint-3")
    others = [entry(purpose) for purpose in kinds]
    found = control_traffic("a contributor", Side.A, [*entries, *others], site_rounds=2)
    assert found.requests == 2.0
    assert (found.bytes_up, found.bytes_down) == (200.0, 2000.0)
    assert found.requests_by_purpose == {"view": 1.0, "mail weights": 1.0}


def test_a_made_view_is_one_that_a_server_could_show() -> None:
    parties = make_parties("test", "requester", [SiteEntry("requester", 1), SiteEntry("site-1", 1)], bytes(32))
    view = StudyView.parse(made_view(parties, 4).canonical())
    roster = parties.roster.message
    assert len(view.ready) == 4
    assert view.current is not None
    assert view.current.agreed_set is not None
    both = (roster.operator_a.name, roster.operator_b.name)
    agreed = require_signatures(view.current.agreed_set, roster, both)
    assert agreed.sites == view.ready == view.current.announcement.message.listed


def test_a_spread_is_the_median_and_the_quartiles() -> None:
    assert Spread.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(median=3.0, low=2.0, high=4.0)


def a_result() -> EnvelopesBenchmark:
    def cost(ms: float, count: float) -> RequestCost:
        return RequestCost(
            server_ms=Spread.of([ms]),
            agent_ms=Spread.of([2 * ms]),
            bytes_up=Spread.of([count]),
            bytes_down=Spread.of([3 * count]),
        )

    view = ViewCost(sites=10, view_bytes=5286, enveloped=cost(1.5, 2200), bare=cost(0.5, 200), added=cost(1.0, 2000))
    control = ControlTraffic(
        who="a contributor",
        side=Side.A,
        requests=8.0,
        bytes_up=18_000.0,
        bytes_down=40_000.0,
        requests_by_purpose={"view": 7.0, "mail weights": 1.0},
    )
    return EnvelopesBenchmark(
        sites=10,
        rounds=10,
        requests=50,
        repeats=15,
        command="moiety bench envelopes --sites 10",
        date="2030-01-01 00:00 UTC",
        machine="a machine",
        load=0.4,
        views=(view, view.model_copy(update={"sites": 1000, "added": cost(9.0, 9000)})),
        control=(control,),
        versions={"python": "3.11"},
    )


def test_what_a_round_adds_is_what_the_smaller_view_adds_times_the_requests(tmp_path: Path) -> None:
    text = envelopes_text(a_result())
    assert "8.0 control requests (view 7.0, mail weights 1.0), 18.0 kB up, 40.0 kB down" in text
    assert "an envelope for each would add 16.0 kB up, 48.0 kB down, server 8.0 ms, agent 16.0 ms" in text
    write_result(a_round(), tmp_path / "round_1e6_10.json")
    assert "Envelopes and signatures" not in page_of(tmp_path)
    write_result(a_result(), tmp_path / "envelopes_10.json")
    page = page_of(tmp_path)
    assert "## Envelopes and signatures: 10 contributors" in page
    assert "- `moiety bench envelopes --sites 10`: 2030-01-01 00:00 UTC, a machine" in page


@pytest.mark.slow
def test_one_run_measures_requests_and_counts_them(tmp_path: Path) -> None:
    file = tmp_path / "envelopes.json"
    numbers = ["--sites", "3", "--rounds", "1", "--requests", "2", "--repeats", "2"]
    done = CliRunner().invoke(app, ["envelopes", *numbers, "--json", str(file), "--folder", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found = EnvelopesBenchmark.model_validate(json.loads(file.read_text(encoding="utf-8")))
    for view in found.views:
        assert view.bare.bytes_down.low > view.view_bytes
        assert view.added.bytes_up.low > 1000  # 512 bytes of envelope at least, two signatures and their heads
        assert view.added.bytes_down.low > 0
        for clock in ("server_ms", "agent_ms"):
            enveloped, bare, added = (getattr(one, clock).median for one in (view.enveloped, view.bare, view.added))
            assert min(enveloped, bare) > 0
            assert added == pytest.approx(enveloped - bare)  # medians of two repeats are their means
    assert {(one.who, one.side) for one in found.control} == {
        (who, side) for who in ("a contributor", "the requester") for side in Side
    }
    for one in found.control:
        assert one.requests >= one.requests_by_purpose["view"] >= 1
    assert [path.name for path in tmp_path.iterdir()] == ["envelopes.json"]  # nothing stays behind
