"""What a server tells an operator's monitoring, from its own registry."""

from __future__ import annotations

from harness.reference.markdown import page, table
from servers.monitoring.metrics import Metrics


def metrics_page() -> str:
    """The reference of the metrics."""
    rows = [
        (f"`{metric.name}{'_total' if metric.type == 'counter' else ''}`", metric.type, metric.documentation)
        for metric in Metrics().registry.collect()
    ]
    return page(
        "Metrics",
        "`/metrics` of the operator's own port, in Prometheus' text format: traffic and counts of rounds, nothing "
        "about what is shared. Labels, alarms and what to do: [operating](../operating.md#metrics-and-alarms).",
        table(["metric", "kind", "what it counts"], sorted(rows)),
    )
