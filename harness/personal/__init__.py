"""Personal models compared on all sites: iFedAvg, APFL, FedAvg, training alone, and training on pooled data."""
