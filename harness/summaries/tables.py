"""A data set's sites as tables, with a schema made for it: its features, and the target's classes."""

from __future__ import annotations

import math

import numpy as np

from harness.datasets.site_data import Federation, SiteData
from protocol.errors import ConfigurationError
from protocol.summary.layout import Categories, Column, Numeric
from protocol.summary.protect import Codes, Numbers

TARGET = "target"
_MOST_FEATURES = 400


def columns_of(federation: Federation) -> tuple[Column, ...]:
    """Every feature is a number; its range is rounded outwards from all sites' values, as a schema would declare it.

    Raises: ConfigurationError for images and the like
    """
    (width, *more) = federation.inputs
    if more or width > _MOST_FEATURES:
        raise ConfigurationError(
            f"{federation.title}: a summary is of a table of at most {_MOST_FEATURES} columns, one example here has "
            f"shape {list(federation.inputs)}"
        )
    names = federation.feature_names or tuple(f"x{place}" for place in range(width))
    pooled = np.concatenate([site.train.X for site in federation.sites]).astype(np.float64)
    numbers = (Numeric(name, *_range(values)) for name, values in zip(names, pooled.T, strict=True))
    return (*numbers, Categories(TARGET, federation.class_names))


def table_of(site: SiteData) -> tuple[Numbers | Codes, ...]:
    """The site's training part, column by column."""
    return (*site.train.X.astype(np.float64).T, np.asarray(site.train.y, dtype=np.int64))


def _range(values: Numbers) -> tuple[float, float]:
    """One digit outwards: 0.13 to 87 becomes 0 to 90, -2 to 12.3 becomes -2 to 13."""
    low, high = float(values.min()), float(values.max())
    step = 10.0 ** math.floor(math.log10((high - low) / 3)) if high > low else 1.0
    return math.floor(low / step) * step, (math.ceil(high / step) + (high <= low)) * step
