"""A site's demands of a whole study before it starts; its agent refuses another study (docs/protocol.md 9)."""

from __future__ import annotations

from protocol.clauses import Clause
from protocol.parameters import Needs
from protocol.policy.refusals import refusal
from protocol.policy.site_policy import SitePolicy
from protocol.rules.server_optimiser import largest_step
from protocol.wire.messages import RankingSpec, Study, StudyProtection, SummarySpec


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
        raise refusal(
            Clause.ALLOW_CKKS,
            "the study is under CKKS, where server A together with any one site can open every site's update; this "
            "site's policy does not allow that: set allow_ckks = true, or ask for a study of shares",
        )


def check_pretrained_allowed(study: Study, policy: SitePolicy) -> None:
    """The site takes a first model that it cannot derive; asked before a study starts."""
    if study.pretrained_digest is not None and not policy.may_pretrain:
        raise refusal(
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
        raise refusal(
            Clause.LARGEST_STEP, f"{found}, allowed is {policy.largest_step:g}: take a smaller rate or clip_norm"
        )
    path = study.rounds * step
    if path > policy.largest_path:
        found = f"this study can move the model by {path:g} in its {study.rounds} rounds"
        raise refusal(
            Clause.LARGEST_PATH,
            f"{found}, allowed is {policy.largest_path:g}: take a smaller rate, clip_norm, or fewer rounds",
        )


def check_noise_allowed(study: Study, policy: SitePolicy) -> None:
    """Updates have the noise that the site asks for; asked before a study starts. What it spends is asked elsewhere."""
    if study.unsupported is not None:
        raise refusal(Clause.NOISE, study.unsupported)
    if policy.epsilon is None and policy.least_noise == 0:
        return
    if study.privacy is None:
        raise refusal(
            Clause.NOISE,
            "the study's updates have no noise, and this site asks for some (epsilon, least_noise): ask for a "
            "study with a [privacy] table",
        )
    if study.privacy.noise_multiplier < policy.least_noise:
        raise refusal(
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
        raise refusal(
            Clause.MAY_RANK,
            "the study ranks sites before training, which tells the requester one number of its choice about each "
            "site's own model; this site's policy does not allow that: set may_rank = true, or ask for a study "
            "without a [ranking] table",
        )
    _require_may_open("ranking", Needs.INNER_PRODUCTS, policy)


def check_penalty_allowed(ranking: RankingSpec, policy: SitePolicy) -> None:
    """The penalty hides single patients enough for this site, whatever the study's own bound lets through."""
    if not ranking.penalty >= policy.least_ranking_penalty:
        raise refusal(
            Clause.RANKING_PENALTY,
            f"the study ranks sites with a penalty of {ranking.penalty:g}, at least {policy.least_ranking_penalty:g} "
            "is demanded: under a small one a rare feature's coefficient shows its patient's residual",
        )


def check_summary_allowed(summary: SummarySpec, policy: SitePolicy) -> None:
    """The site lets sums over its table be opened; asked before a study starts."""
    if not policy.may_summarise:
        raise refusal(
            Clause.MAY_SUMMARISE,
            "the study opens sums over the sites' tables (counts, means, histograms), which is not differential "
            "privacy; this site's policy does not allow that: set may_summarise = true, or ask for a study without a "
            "[summary] table",
        )
    if summary.second_moments and not policy.may_share_second_moments:
        raise refusal(
            Clause.SECOND_MOMENTS,
            "the summary holds sums of products of numeric columns; this site's policy does not allow that: set "
            "may_share_second_moments = true, or ask for a study without second_moments",
        )


def _require_may_open(who: str, needs: Needs, policy: SitePolicy) -> None:
    if needs not in policy.may_open:
        allowed = ", ".join(one.value for one in policy.may_open) or "nothing"
        raise refusal(
            Clause.MAY_OPEN, f"the study's {who} opens {needs.value} of this site to the requester, allowed: {allowed}"
        )
