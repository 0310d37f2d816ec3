"""A ring of 48 bits: what it costs and saves, stage by stage, and how often lifting a sketch errs."""
