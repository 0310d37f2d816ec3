"""The robustness page: sites that poison, sites that lie to gain weight, updates located by their distances."""
