"""``moiety lab faults``: whole studies on virtual time under seeded accidents, and what must hold after each."""
