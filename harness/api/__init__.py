"""The Python interface for researchers: ``from moiety import Case, Study, simulate`` and what else is here."""

from harness.api.results import Results, load_results
from harness.api.running import simulate
from harness.api.studies import Case, Study
from harness.simulate.workers import RayCluster

__all__ = ["Case", "RayCluster", "Results", "Study", "load_results", "simulate"]
