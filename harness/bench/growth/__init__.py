"""How a round's cost grows with parameters and with sites, drawn from the figures of its benchmarks."""
