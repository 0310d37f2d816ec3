"""``moiety simulate``: cases, their runs, and what is kept of them."""
