"""What a researcher writes Python against: ``from moiety import Case, Results, Study, load_results, simulate``."""

from harness.api.results import Results, load_results
from harness.api.running import simulate
from harness.api.studies import Case, Study

__all__ = ["Case", "Results", "Study", "load_results", "simulate"]
