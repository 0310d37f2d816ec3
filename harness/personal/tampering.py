"""What is done to one site's data on purpose, to see whether its personal layer shows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from client_agent.learning.data import Examples
from harness.datasets.site_data import SiteData
from protocol.errors import ConfigurationError


class Tampering(BaseModel):
    """Of ``site``: ``shift`` is added to the columns ``shifted``; the labels ``swapped`` change places.

    In all parts of the site's data, as a sensor mounted differently, or a column coded the other way round, would.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    site: str | None = None
    shifted: list[Annotated[int, Field(ge=0)]] = []
    shift: float = 0.0
    swapped: list[Annotated[int, Field(ge=0)]] = []


def tampered(sites: tuple[SiteData, ...], tampering: Tampering) -> tuple[SiteData, ...]:
    """The sites with one of them changed. Raises: ConfigurationError for a site, column or label that is not there"""
    if tampering.site is None:
        return sites
    if tampering.site not in [site.name for site in sites]:
        raise ConfigurationError(f"tampering: no site {tampering.site!r}; there are {', '.join(s.name for s in sites)}")
    return tuple(_changed(site, tampering) if site.name == tampering.site else site for site in sites)


def _changed(site: SiteData, tampering: Tampering) -> SiteData:
    columns = site.train.X.shape[1]
    if any(column >= columns for column in tampering.shifted):
        raise ConfigurationError(f"tampering: columns {tampering.shifted}; the data have 0 to {columns - 1}")
    if tampering.swapped and len(set(tampering.swapped)) != 2:
        raise ConfigurationError(f"tampering: swapped takes two different labels, found {tampering.swapped}")
    return replace(
        site,
        train=_changed_part(site.train, tampering),
        validation=_changed_part(site.validation, tampering),
        test=_changed_part(site.test, tampering),
    )


def _changed_part(part: Examples, tampering: Tampering) -> Examples:
    X, y = part.X.copy(), part.y.copy()
    X[:, tampering.shifted] += np.float32(tampering.shift)
    if tampering.swapped:
        first, second = tampering.swapped
        y[part.y == first], y[part.y == second] = second, first
    return Examples(X, y)
