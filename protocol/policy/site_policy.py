"""The bounds that a site sets itself, and its demands of a whole study (docs/protocol.md 9)."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

from pydantic import Field

from protocol.errors import Clause, PolicyRefusal
from protocol.messages.control import (
    LEAST_EXAMPLES,
    LEAST_PENALTY,
    MOST_NOISE,
    RankingSpec,
    Study,
    StudyProtection,
    SummarySpec,
)
from protocol.parameters import Needs, Record
from protocol.rules.interface import ListTerms, SamplingNoise
from protocol.shared_model import largest_step

Opened = Annotated[tuple[Annotated[Needs, Field(strict=False)], ...], Field(strict=False)]
"""A settings file has texts in a list, where strict validation asks for members in a tuple."""


class SitePolicy(Record):
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

    least_contributors: int = Field(default=3, ge=1, description="the sum of two shows each what the other shared")
    largest_share: float = Field(default=0.6, gt=0, le=1, description="a sum that is mostly one update shows it")
    assumed_colluders: int = Field(default=0, ge=0, description="one of three contributors would let no sum pass")
    may_open: Opened = Field(
        default=(Needs.DISTANCES, Needs.NORMS, Needs.PAIRS, Needs.INNER_PRODUCTS),
        description="what the rules need; weighted_norms show how many samples a site has",
    )
    allow_ckks: bool = Field(default=False, description="server A and any one site could open every update")
    may_rank: bool = Field(default=False, description="the requester learns a number of its choice about the site")
    least_isolation: float = Field(default=0.3, ge=0, le=1, description="three equal sites whose list stays have 0.816")
    least_ranking_penalty: float = Field(
        default=LEAST_PENALTY, ge=LEAST_PENALTY, le=1, description="what every study keeps; more hides few examples"
    )
    may_pretrain: bool = Field(default=False, description="a crafted first model shows single records")
    may_summarise: bool = Field(default=False, description="sums over a table are not differentially private")
    may_share_second_moments: bool = Field(default=False, description="as may_summarise")
    least_examples: int = Field(default=LEAST_EXAMPLES, ge=LEAST_EXAMPLES, description="what every study keeps")
    most_questions: int = Field(default=1, ge=1, description="the difference of two counts single patients")
    most_cohorts: int = Field(default=1, ge=1, description="three sums over other sites can show one site's")
    largest_step: float = Field(default=64.0, gt=0, description="shorter steps would stop honest studies")
    largest_path: float = Field(default=20_000.0, gt=0, description="as largest_step, for some hundred such rounds")
    epsilon: Annotated[float, Field(gt=0, le=100)] | None = Field(
        default=None, description="noise costs accuracy, so a site or its law asks for it"
    )
    delta: float = Field(default=1e-5, gt=0, le=0.01, description="must stay below one over the number of examples")
    least_noise: float = Field(default=0.0, ge=0, le=MOST_NOISE, description="epsilon says how much noise is enough")

    @property
    def largest_share_exact(self) -> Fraction:
        """The share as it was written: 0.6 is 3/5."""
        return Fraction(repr(self.largest_share))


def list_terms(study: Study, policy: SitePolicy, requester_samples: int) -> ListTerms:
    """Return the terms of a list: the study's least number, the strictest announced, and this site's policy for
    everybody.
    """
    parameters, training = study.parameters, study.training
    return ListTerms(
        parameters.least_contributors,
        max(parameters.assumed_colluders, policy.assumed_colluders),
        policy.largest_share_exact,
        SamplingNoise(training.update, training.batch_size, requester_samples),
    )


def check_study_allowed(study: Study, policy: SitePolicy) -> None:
    """All that a site can refuse about a study before it starts: protection, model, rule, ranking and summary."""
    check_protection_allowed(study.protection, policy)
    check_pretrained_allowed(study, policy)
    check_steps_allowed(study, policy)
    check_needs_allowed(study.rule.needs, policy)
    check_needs_allowed(study.rule.name.declared.measures, policy)
    check_noise_allowed(study, policy)
    if study.ranking is not None:
        check_ranking_allowed(policy)
        check_penalty_allowed(study.ranking, policy)
    if study.summary is not None:
        check_summary_allowed(study.summary, policy)


def check_protection_allowed(protection: StudyProtection, policy: SitePolicy) -> None:
    """The site takes part under this protection; asked before a study starts, which has one for all its rounds."""
    if protection.plan.keyed and not policy.allow_ckks:
        raise PolicyRefusal(
            Clause.ALLOW_CKKS,
            "the study is under CKKS, where server A together with any one site can open every site's update; this "
            "site's policy does not allow that: set allow_ckks = true, or ask for a study of shares",
        )


def check_pretrained_allowed(study: Study, policy: SitePolicy) -> None:
    """The site takes a first model that it cannot derive; asked before a study starts."""
    if study.pretrained_digest is not None and not policy.may_pretrain:
        raise PolicyRefusal(
            Clause.MAY_PRETRAIN,
            "the study begins with a model of the requester's choice, and a crafted one makes single records readable "
            "from the sum of all sites; this site's policy does not allow that: set may_pretrain = true if you trust "
            "where the model comes from, or ask for a study without 'pretrained'",
        )


def check_steps_allowed(study: Study, policy: SitePolicy) -> None:
    """No round moves the model further than the site lets it, nor all rounds together; asked before a study starts."""
    step = largest_step(study)
    if step > policy.largest_step:
        found = f"this study can move the model by {step:g} in a round"
        raise PolicyRefusal(
            Clause.LARGEST_STEP, f"{found}, allowed is {policy.largest_step:g}: take a smaller rate or clip_norm"
        )
    path = study.rounds * step
    if path > policy.largest_path:
        found = f"this study can move the model by {path:g} in its {study.rounds} rounds"
        raise PolicyRefusal(
            Clause.LARGEST_PATH,
            f"{found}, allowed is {policy.largest_path:g}: take a smaller rate, clip_norm, or fewer rounds",
        )


def check_noise_allowed(study: Study, policy: SitePolicy) -> None:
    """Updates have the noise that the site asks for; asked before a study starts. What it spends is asked elsewhere."""
    if study.unsupported is not None:
        raise PolicyRefusal(Clause.NOISE, study.unsupported)
    if policy.epsilon is None and policy.least_noise == 0:
        return
    if study.privacy is None:
        raise PolicyRefusal(
            Clause.NOISE,
            "the study's updates have no noise, and this site asks for some (epsilon, least_noise): ask for a "
            "study with a [privacy] table",
        )
    if study.privacy.noise_multiplier < policy.least_noise:
        raise PolicyRefusal(
            Clause.NOISE,
            f"the study has a noise multiplier of {study.privacy.noise_multiplier:g}, at least {policy.least_noise:g} "
            "is demanded",
        )


def check_needs_allowed(needs: Needs, policy: SitePolicy) -> None:
    """The site lets its requester learn this about it; asked before a study starts, and in every round."""
    if needs is not Needs.NOTHING:
        _require_may_open("rule", needs, policy)


def check_ranking_allowed(policy: SitePolicy) -> None:
    """The site lets its requester rank it; asked before a study starts, and in the round."""
    if not policy.may_rank:
        raise PolicyRefusal(
            Clause.MAY_RANK,
            "the study ranks sites before training, which tells the requester one number of its choice about each "
            "site's own model; this site's policy does not allow that: set may_rank = true, or ask for a study "
            "without a [ranking] table",
        )
    _require_may_open("ranking", Needs.INNER_PRODUCTS, policy)


def check_penalty_allowed(ranking: RankingSpec, policy: SitePolicy) -> None:
    """The penalty hides single patients enough for this site, whatever the study's own bound lets through."""
    if not ranking.penalty >= policy.least_ranking_penalty:
        raise PolicyRefusal(
            Clause.RANKING_PENALTY,
            f"the study ranks sites with a penalty of {ranking.penalty:g}, at least {policy.least_ranking_penalty:g} "
            "is demanded: under a small one a rare feature's coefficient shows its patient's residual",
        )


def check_summary_allowed(summary: SummarySpec, policy: SitePolicy) -> None:
    """The site lets sums over its table be opened; asked before a study starts."""
    if not policy.may_summarise:
        raise PolicyRefusal(
            Clause.MAY_SUMMARISE,
            "the study opens sums over the sites' tables (counts, means, histograms), which is not differential "
            "privacy; this site's policy does not allow that: set may_summarise = true, or ask for a study without a "
            "[summary] table",
        )
    if summary.second_moments and not policy.may_share_second_moments:
        raise PolicyRefusal(
            Clause.SECOND_MOMENTS,
            "the summary holds sums of products of numeric columns; this site's policy does not allow that: set "
            "may_share_second_moments = true, or ask for a study without second_moments",
        )


def _require_may_open(who: str, needs: Needs, policy: SitePolicy) -> None:
    if needs not in policy.may_open:
        allowed = ", ".join(one.value for one in policy.may_open) or "nothing"
        raise PolicyRefusal(
            Clause.MAY_OPEN, f"the study's {who} opens {needs.value} of this site to the requester, allowed: {allowed}"
        )
