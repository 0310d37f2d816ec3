"""``moiety lab results``: the papers' tables and plots from the simulations' result lines, as pages in docs/results/."""
