"""Contributions of a site that are sealed, bound or sent wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import httpx
import numpy as np

from harness.adversaries import forgeries as forged
from harness.adversaries.hostile.act import Act, Round
from harness.adversaries.scripted_rounds import EARLY, OTHER, VICTIM
from protocol.sharing import Side

Change: TypeAlias = Callable[[bytes], bytes]


def share(make: Callable[[Round], bytes], side: Side = Side.B, site: str = VICTIM) -> Act:
    """Send what ``make`` returns to ``side``, which holds the victim's vector when it is B."""
    return lambda r: r.put(site, side, make(r))


def header(side: Side = Side.B, **changes: object) -> Act:
    return share(lambda r: forged.with_header(r.honest[VICTIM][side], **changes).sealed(), side)


def vector_of(r: Round, n: int) -> forged.Parts:
    """The victim's vector share at B, of another length, sound otherwise."""
    shorter = r.fresh(VICTIM, np.resize(r.x[VICTIM], n))
    return forged.with_header(shorter[Side.B], length=r.x[VICTIM].size)


def altered_header(r: Round) -> bytes:
    """The sealed share of one header under another, just as acceptable one."""
    parts = r.honest[VICTIM][Side.B]
    other = forged.with_header(parts, commitment_a="33" * 32)
    sealed = parts.sealed()
    return sealed.replace(parts.header, other.header)


def both_shares_to_one_server(r: Round) -> httpx.Response:
    return r.put(EARLY, Side.A, forged.both_shares_to_one_server(r.honest[EARLY], Side.A))


def first_the_others_share(r: Round) -> httpx.Response:
    return r.put(VICTIM, Side.A, forged.both_shares_to_one_server(r.honest[VICTIM], Side.A))


def in_another_name(r: Round) -> httpx.Response:
    return r.put(VICTIM, Side.A, r.honest[OTHER][Side.A].sealed())


def for_another_announcement(r: Round) -> httpx.Response:
    told = r.announcement.model_copy(update={"weight_list_digest": "22" * 32})
    return r.put(VICTIM, Side.A, r.fresh(VICTIM, announcement=told)[Side.A].sealed())


def same_id_other_bytes(r: Round) -> httpx.Response:
    return r.put(EARLY, Side.A, r.fresh(EARLY)[Side.A].sealed())
