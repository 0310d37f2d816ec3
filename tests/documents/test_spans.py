"""The example that shows a server's spans: a real process, sent to by the server's own exporter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from protocol.sharing import Side
from servers.monitoring import traces_to
from tests.documents.lines import ROOT

EXAMPLE = "docs/examples/spans.py"


def test_the_listener_of_operating_shows_a_rounds_phases() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="NOT TESTED: OpenTelemetry is not installed")
    text = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    assert f"python {EXAMPLE} 4318" in text
    command = (sys.executable, str(Path(ROOT, EXAMPLE)), "0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        try:
            address = listener.stdout.readline().strip().removeprefix("waiting at ")
            traces = traces_to(address, Side.A)
            traces.phase("digest", "collecting", 100.0, 102.5)
            traces.phase("digest", "measuring", 102.5, 103.0)
            traces.round_over("digest", 103.25)
            traces.close()
            lines = [listener.stdout.readline().split(" ", 1) for _ in range(3)]
        finally:
            listener.terminate()
    assert [said.strip() for _, said in lines] == [
        "side a collecting 2500 ms",
        "side a measuring 500 ms",
        "side a round 3250 ms",
    ]
    assert len({trace for trace, _ in lines}) == 1
    assert all(said in text for said in ("side a collecting", "side a round"))
