"""The CKKS path: WFedAvg on encrypted updates, summed by one server (docs/protocol.md 11)."""
