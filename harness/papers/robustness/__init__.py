"""The robustness page: sites that lie to gain weight, and updates located by their distances."""
