"""Spans of a round's phases for an OpenTelemetry collector: which phase, when it began and ended, and nothing else.

A round is a trace: a span ``round`` from its announcement on, and below it one for each phase that ended. No study,
site, number or size is in them. Without ``traces_to`` no package of OpenTelemetry is imported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from protocol.errors import ConfigurationError
from protocol.sharing import Side

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import Span

_NS: Final = 10**9
_TIMEOUT_S: Final = 5


class Traces(Protocol):
    """Takes phases with their times since 1970; a study is told by its digest, which stays here."""

    def phase(self, digest: str, name: str, begun_s: float, ended_s: float) -> None: ...

    def round_over(self, digest: str, ended_s: float) -> None: ...

    def close(self) -> None: ...


class NoTraces:
    """Nobody asked for any."""

    def phase(self, digest: str, name: str, begun_s: float, ended_s: float) -> None:
        return

    def round_over(self, digest: str, ended_s: float) -> None:
        return

    def close(self) -> None:
        return


@dataclass(frozen=True, eq=False)
class RoundTraces:
    """Into a provider's processors."""

    provider: TracerProvider
    _rounds: dict[str, Span] = field(default_factory=dict)

    def phase(self, digest: str, name: str, begun_s: float, ended_s: float) -> None:
        from opentelemetry.trace import set_span_in_context

        tracer = self.provider.get_tracer("moiety")
        if digest not in self._rounds:
            self._rounds[digest] = tracer.start_span("round", start_time=int(begun_s * _NS))
        parent = set_span_in_context(self._rounds[digest])
        tracer.start_span(name, context=parent, start_time=int(begun_s * _NS)).end(int(ended_s * _NS))

    def round_over(self, digest: str, ended_s: float) -> None:
        root = self._rounds.pop(digest, None)
        if root is not None:
            root.end(int(ended_s * _NS))

    def close(self) -> None:
        """Send what waits, or give it up after some seconds."""
        self.provider.shutdown()


def traces_to(endpoint: str | None, side: Side) -> Traces:
    """To the collector at ``endpoint`` over OTLP/HTTP; none without one. Raises: ConfigurationError"""
    if endpoint is None:
        return NoTraces()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigurationError(
            "key 'traces_to': OpenTelemetry is not installed; pip install opentelemetry-sdk "
            "opentelemetry-exporter-otlp-proto-http, or unset the key"
        ) from None
    return round_traces(side, BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=_TIMEOUT_S)))


def round_traces(side: Side, processor: SpanProcessor) -> RoundTraces:
    """Into one processor; the resource says which side, and nothing of this machine."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    resource = Resource({"service.name": "moiety-server", "moiety.side": side.value})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return RoundTraces(provider)
