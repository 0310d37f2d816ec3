"""Correlations: what an inner product between the two servers consumes (docs/protocol.md 7)."""

from __future__ import annotations

from protocol.mpc.ot.half import CorrelationHalf

__all__ = ["CorrelationHalf"]
