"""Shows the spans that a server sends, a line each, without a collector: ``python docs/examples/spans.py 4318``.

Needs ``opentelemetry-exporter-otlp-proto-http``. It speaks OTLP over HTTP on the loopback, and keeps nothing.
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

_NS_IN_A_MS = 10**6


class Collector(BaseHTTPRequestHandler):
    """What a server posts to ``/v1/traces``."""

    def do_POST(self) -> None:  # the name that the standard library calls
        sent = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
        for of in sent.resource_spans:
            told = {one.key: one.value.string_value for one in of.resource.attributes}
            for span in (span for scope in of.scope_spans for span in scope.spans):
                took_ms = (span.end_time_unix_nano - span.start_time_unix_nano) // _NS_IN_A_MS
                print(f"{span.trace_id.hex()[:8]} side {told['moiety.side']} {span.name} {took_ms} ms", flush=True)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Requests are not of interest, spans are."""


if __name__ == "__main__":
    with HTTPServer(("127.0.0.1", int(sys.argv[1])), Collector) as listening:
        print(f"waiting at http://127.0.0.1:{listening.server_port}/v1/traces", flush=True)
        listening.serve_forever()
