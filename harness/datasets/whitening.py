"""Features whitened by the pooled mean and covariance of all sites' training parts, the same map at every site.

Distances between updates of a linear model are then nearly those of its loss's own curvature. The moments are pooled
in the open, which a simulation can; sites would sum them first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from client_agent.learning.data import Examples
from harness.datasets.site_data import Federation
from protocol.errors import ConfigurationError

_RIDGE: Final = 1e-3
"""Of the mean variance: a feature that hardly varies, or is a sum of others, is not blown up."""


def whitened(federation: Federation) -> Federation:
    """Every part of every site as (x - mean) covariance^(-1/2). Raises: ConfigurationError for images"""
    if len(federation.inputs) != 1:
        raise ConfigurationError(
            f"key 'case.whitened': examples of shape {list(federation.inputs)} are no rows of a table; leave it out"
        )
    pooled = np.concatenate([site.train.X for site in federation.sites]).astype(np.float64)
    mean = pooled.mean(axis=0)
    covariance = np.atleast_2d(np.cov(pooled, rowvar=False, bias=True))
    values, vectors = np.linalg.eigh(covariance)
    scale = 1 / np.sqrt(np.maximum(values, 0) + _RIDGE * values.mean())
    turn = (vectors * scale) @ vectors.T

    def turned(part: Examples) -> Examples:
        return replace(part, X=((part.X.astype(np.float64) - mean) @ turn).astype(np.float32))

    sites = tuple(
        replace(site, train=turned(site.train), validation=turned(site.validation), test=turned(site.test))
        for site in federation.sites
    )
    return replace(federation, sites=sites, feature_names=())
