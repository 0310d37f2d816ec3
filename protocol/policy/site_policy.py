"""The bounds that a site sets itself (docs/protocol.md 9)."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from protocol.parameters import Needs
from protocol.wire.messages import LEAST_EXAMPLES, LEAST_PENALTY, MOST_NOISE

Opened = Annotated[tuple[Annotated[Needs, Field(strict=False)], ...], Field(strict=False)]
"""A settings file has texts in a list, where strict validation asks for members in a tuple."""


class SitePolicy(BaseModel):
    """The site's own bounds; a study may ask for lower ones, this says how low the site goes.

    ``least_contributors`` bounds m - t from below. ``largest_share`` is the largest part of the sum's smallest
    possible weight that may be the site's own. ``assumed_colluders`` is the site's own t; the larger of it and the
    study's counts: with t = 0 the site trusts that no other contributor tells the requester its update.
    ``may_open`` is what a rule may have opened about the site to the requester. ``may_rank``: whether a study may rank
    the site before training, which opens an inner product with its own model, once per study (docs/threat_model.md,
    "What each rule discloses"); like ``allow_ckks`` it must be said. ``least_ranking_penalty`` is the smallest penalty
    of a ranking's ridge regression, no smaller than what any study may ask for. ``allow_ckks``: whether the site takes
    part where server A together with any one site can open its update (docs/threat_model.md, the CKKS path); it does
    not unless it says so. ``may_pretrain``: whether version 0 of a model may come from the requester, where the study
    pins it; a crafted one makes single records readable from an honest sum, so this too must be said.
    ``may_summarise``: whether sums over this site's table may be opened, once per study (docs/protocol.md 17), and
    ``may_share_second_moments`` those of products of its numeric columns; neither is differentially private, so both
    must be said. ``least_examples``: fewer values than that are shared of no column and no category.
    ``most_questions``: how many different questions one column answers, in summaries and class counts, in all studies
    and for ever; the difference of two counts single patients.
    ``most_cohorts``: over how many different sets of sites this site's data are summed as they are; three such sums can
    show one site's.
    ``largest_step`` and ``largest_path`` bound how far one round, and all rounds of a study, may move the model (L2
    norm): as far a requester can steer it by its own updates. ``least_isolation``: how much of an update must stay
    hidden from one who knows all sums and weights, as a relative error, for every contributor's update that the sums
    hold (docs/protocol.md 13); 0 asks for nothing.
    ``epsilon``, at ``delta``, is the site's privacy budget: what all studies over its key's data together may spend
    (docs/protocol.md 19), for each single record; with it no study takes place whose updates have no noise.
    None keeps count and bounds nothing. ``least_noise`` is the smallest noise multiplier that a study may have.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    least_contributors: Annotated[int, Field(ge=1)] = 3
    largest_share: Annotated[float, Field(gt=0, le=1)] = 0.6
    assumed_colluders: Annotated[int, Field(ge=0)] = 0
    may_open: Opened = (Needs.DISTANCES, Needs.NORMS, Needs.PAIRS, Needs.INNER_PRODUCTS)
    allow_ckks: bool = False
    may_rank: bool = False
    least_isolation: Annotated[float, Field(ge=0, le=1)] = 0.3
    least_ranking_penalty: Annotated[float, Field(ge=LEAST_PENALTY, le=1)] = LEAST_PENALTY
    may_pretrain: bool = False
    may_summarise: bool = False
    may_share_second_moments: bool = False
    least_examples: Annotated[int, Field(ge=LEAST_EXAMPLES)] = LEAST_EXAMPLES
    most_questions: Annotated[int, Field(ge=1)] = 1
    most_cohorts: Annotated[int, Field(ge=1)] = 1
    largest_step: Annotated[float, Field(gt=0)] = 64.0
    largest_path: Annotated[float, Field(gt=0)] = 20_000.0
    epsilon: Annotated[float, Field(gt=0, le=100)] | None = None
    delta: Annotated[float, Field(gt=0, le=0.01)] = 1e-5
    least_noise: Annotated[float, Field(ge=0, le=MOST_NOISE)] = 0.0

    @property
    def largest_share_exact(self) -> Fraction:
        """The share as it was written: 0.6 is 3/5."""
        return Fraction(repr(self.largest_share))
