"""``moiety lab results``: the papers' tables and plots from result lines, as pages in docs/results/."""
