"""``moiety lab results``: pages of docs/results and docs/benchmarks.md, from data files."""
