"""The work of ``moiety study``: check a study against policies and budgets, create, cancel it, show what it opened."""

from __future__ import annotations

import csv
import math
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict
from rich.table import Table

from client_agent.cli.tables import add_row, answer, console, json_line, plain, table
from client_agent.learning.data import names_of, require_made_by_schema
from client_agent.learning.sampling import drawing_probability, steps_of
from client_agent.learning.study_file import (
    FinishTable,
    StudyTable,
    parse_study_table,
    study_from_toml,
)
from client_agent.settings import AgentSettings
from client_agent.site.connections import Site
from client_agent.site.identity import load_chain
from client_agent.site.journal import StudyJournal
from client_agent.site.privacy_budget import Steps, accountant, budget_memory, epsilon_of, noise_for, share_used
from client_agent.study.approval import note
from client_agent.study.contribution import transfer_remarks
from client_agent.study.outbox import create_study, load_pretrained, withdraw
from client_agent.study.privacy_spending import (
    ForeseenEpsilon,
    foreseen_epsilon,
    least_spent,
    own_examples,
    require_room_for,
)
from client_agent.study.results import RANKING_FILE, SUMMARY_FILE, Ranking, Summary
from client_agent.study.transcripts import verified
from host.audit_log import Action
from host.output_files import rewrite
from host.settings import read_text
from protocol.configuration import parse_toml, validated
from protocol.errors import ConfigurationError, ConflictingMessage, PolicyRefusal, UnknownStudy
from protocol.messages.control import (
    MOST_NOISE,
    EndCause,
    Roster,
    RuleName,
    Study,
    StudyEnd,
    StudyEndState,
    StudyState,
    TrainingSpec,
    sign,
)
from protocol.messages.specifications import LEAST_NOISE
from protocol.policy.clauses import foresee
from protocol.policy.site_policy import SitePolicy, check_study_allowed, list_terms
from protocol.rules.registry import rule_for
from protocol.shared_model import model_digest_of
from protocol.sharing import Side
from protocol.summary.table_one import (
    QUANTILES,
    CategorySummary,
    NumericSummary,
    TableOne,
    scaling_of,
    scaling_text,
    spread_unknown,
)
from protocol.text import NamesKind, printable

_NAMED: Final = ": every site compares its own with them, and both operators can read them"
_NOT_NAMED: Final = "it names no columns and no classes: no site will see whether its data mean the same"


def create_from(
    study_file: Path,
    settings: AgentSettings,
    config: Path,
    pretrained: Path | None,
    shown: Sequence[Path],
    *,
    dry_run: bool,
    json_output: bool,
) -> None:
    """Queue the study of a file for this site's agent, or with ``dry_run`` only check it. Raises: ConfigurationError"""
    study, finish, spends = _checked(study_file, settings, pretrained, shown)
    dimension, noise = study.parameters.dimension, {} if spends is None else {"privacy": asdict(spends)}
    values = {"study": study.name, "digest": study.digest(), "dimension": dimension}
    spent = "" if spends is None else f"\nits noise: {spends.words}"
    if dry_run:
        text = f"study {study.name} can be created: {dimension} parameters are shared{spent}"
        answer({**values, **noise}, text, json_output=json_output)
        return
    note(settings, study, Action.STUDY_CREATED)
    create_study(settings.state_dir, study, pretrained, finish)
    named = {kind.value: len(names_of(study.model).of(kind)) for kind in NamesKind}
    given = " and ".join(f"{count} {kind}" for kind, count in named.items() if count)
    watch = shlex.join(["moiety", "study", "watch", study.name, "--config", str(config)])
    holds = f"it holds {given}{_NAMED}" if given else _NOT_NAMED
    text = f"study {study.name} is queued; follow it with: {watch}\n{holds}{spent}"
    answer({**values, **named, **noise}, text, json_output=json_output)


def _checked(
    study_file: Path, settings: AgentSettings, pretrained: Path | None, shown: Sequence[Path]
) -> tuple[Study, FinishTable | None, ForeseenEpsilon | None]:
    """The study in a file, its local finish, and what its noise would spend; remarks go to standard error."""
    from client_agent.learning.torch_learner import try_study  # torch, which no other command of this module needs

    chain, _ = load_chain(settings)
    roster = chain.head
    _require_requester(settings, roster)
    text, source = read_text(study_file), str(study_file)
    study = study_from_toml(text, source, roster, settings.plugin, settings.data, settings.sources)
    study = study.model_copy(update={"roster_digest": chain.first_digest})
    if (settings.state_dir / "studies" / study.name).exists():
        raise ConfigurationError(f"{study_file}: a study named {study.name!r} is here already; choose another name")
    finish = parse_study_table(text, source).finish
    if study.correlation_source == "dealer":
        raise ConfigurationError(
            f"{source}: key 'correlation_source': found 'dealer', which exists in simulation only (moiety simulate); "
            "a study at two servers takes 'ot'"
        )
    if pretrained is not None:
        model = load_pretrained(pretrained, study.model_dimension)
        study = study.model_copy(update={"pretrained_digest": model_digest_of(model)})
    require_made_by_schema(study, settings.data)
    remarks = require_federated(study, roster, settings.policy, shown)
    transfers = transfer_remarks(study, settings, time.time())
    if not settings.data.exists():
        raise ConfigurationError(f"key 'data': {settings.data} does not exist; put this site's training data there")
    tried = try_study(study, settings.data, settings.plugin, settings.device, settings.sources, finish)
    sys.stderr.writelines(f"{remark}\n" for remark in (*remarks, *transfers, *tried))
    require_own_budget(study, settings, chain.founding_keys[settings.site], finish)
    return study, finish, foreseen_epsilon(study, roster, settings.policy.delta, own_examples(settings.data))


def cancel_study(settings: AgentSettings, name: str, reason: str, *, json_output: bool) -> None:
    """End it at both servers; one that no server has leaves the outbox, or is marked so that the agent leaves it alone.

    Raises: ConfigurationError, UnknownStudy, ConflictingMessage
    """
    with Site(settings) as site:
        _require_requester(settings, site.roster)
        try:
            digest = site.clients[Side.A].study(name).message.digest()
        except UnknownStudy:
            _withdraw(settings, name)
            text = f"study {name} had not reached the servers; it is withdrawn here"
            answer({"study": name, "state": "withdrawn"}, text, json_output=json_output)
            return
        end = StudyEnd(study_digest=digest, state=StudyEndState.CANCELLED, cause=EndCause.CANCELLED, reason=reason)
        signed = sign(end, site.keys.name, site.keys.signing)
        try:
            for side in Side:
                site.clients[side].end(name, signed)
        except ConflictingMessage as error:
            if site.clients[Side.A].view(name).state is not StudyState.LOCAL_ONLY:
                raise
            raise ConflictingMessage(
                f"{error.detail}; the shared part of study {name!r} has ended already, and this site goes on training "
                "alone: stop its agent to stop that"
            ) from None
    values = {"study": name, "state": "cancelled", "reason": reason}
    answer(values, f"study {name} is cancelled at both servers", json_output=json_output)


def _withdraw(settings: AgentSettings, name: str) -> None:
    if withdraw(settings.state_dir, name):
        return
    if not (settings.state_dir / "studies" / name / "study.json").exists():
        raise UnknownStudy(f"no study {name!r} is here or at the servers; look at its name")
    StudyJournal(settings.state_dir, name).withdraw()


def _require_requester(settings: AgentSettings, roster: Roster) -> None:
    if settings.site != roster.requester:
        raise ConfigurationError(
            f"only the requester {roster.requester!r} creates and ends studies; this site is {settings.site!r}"
        )


def show_deviations(transcripts: Sequence[Path], roster: Path, *, json_output: bool) -> bool:
    """Return whether anybody deviated by what is signed. Raises: ConfigurationError, MalformedMessage"""
    found, count = verified(list(transcripts), roster)
    if json_output:
        for one in found.deviations:
            json_line({"round": one.round, "parties": list(one.parties), "deviation": one.what})
        for text in found.unproven:
            json_line({"unproven": text})
        json_line({"transcripts": count, "signatures": found.looked_at, "deviations": len(found.deviations)})
        return bool(found.deviations)
    for one in found.deviations:
        sys.stdout.write(f"round {one.round}: {' or '.join(one.parties)} {printable(one.what)}\n")
    for text in found.unproven:
        sys.stdout.write(f"proves nothing: {printable(text)}; ask another site for its transcript\n")
    said = "nobody deviated by what is signed" if not found.deviations else "show these lines to both operators"
    sys.stdout.write(f"{count} transcripts, {found.looked_at} signatures looked at: {said}\n")
    return bool(found.deviations)


class _Shown(BaseModel):
    """The one table that is read of what another site shows."""

    model_config = ConfigDict(extra="ignore")
    policy: SitePolicy


def require_federated(study: Study, roster: Roster, own: SitePolicy, shown: Sequence[Path] = ()) -> tuple[str, ...]:
    """Remarks for the requester about a study that this policy and those in ``shown`` let begin.

    Raises: PolicyRefusal of the own policy; ConfigurationError when a policy would decline every list
    """
    check_study_allowed(study, own)
    remarks = _foreseen(study, roster, own, "this site's policy")
    for path in shown:
        policy = _policy_in(path)
        try:
            check_study_allowed(study, policy)
        except PolicyRefusal as refused:
            raise ConfigurationError(f"the policy in {path} refuses the study: {refused.detail}") from None
        _foreseen(study, roster, policy, f"the policy in {path}")
        require_shown_budget(study, roster, policy, f"the policy in {path}")
    return remarks


def _foreseen(study: Study, roster: Roster, policy: SitePolicy, whose: str) -> tuple[str, ...]:
    if study.rule.name is RuleName.LOCAL:
        return ()
    contributors = tuple(party.name for party in roster.contributors)
    rule = rule_for(
        study.rule,
        batch_size=study.training.batch_size,
        grid=study.parameters.weight_grid,
        terms=list_terms(study, policy, 1),
    )
    found = foresee(study, contributors, rule, policy)
    count = len(contributors)
    if found.refused is not None:
        raise ConfigurationError(
            f"NOT FEDERATED: {whose} declines every list that the roster's {count} contributors allow, so this site "
            f"would train alone: {found.refused.detail}; enrol more sites, or lower what the policy asks for "
            "(assumed_colluders, least_contributors; a larger largest_share) where that may be"
        )
    if not found.spare:
        return (
            f"each of the roster's {count} contributors must be in every sum: when one stays away, fails a check or is "
            "given no weight by the rule, the shared part ends and this site trains alone (LOCAL_ONLY)",
        )
    return ()


def _policy_in(path: Path) -> SitePolicy:
    """The [policy] of another site's settings, or of a file that has nothing else. Raises: ConfigurationError"""
    return validated(_Shown, parse_toml(read_text(path), str(path)), str(path)).policy


def require_own_budget(study: Study, settings: AgentSettings, came_with: str, finish: FinishTable | None) -> None:
    """All rounds fit into what is left of this site's budget. Raises: PolicyRefusal, ConfigurationError"""
    if study.privacy is None:
        return
    from client_agent.learning.plugin import fitting_data, study_plugin

    train = fitting_data(study, settings.data, study_plugin(study, settings.plugin)).train
    seen = train if finish is None else finish.parts(train, 0)[0]
    require_room_for(study, len(seen), budget_memory(settings.state_dir, came_with), settings.policy)


def require_shown_budget(study: Study, roster: Roster, policy: SitePolicy, whose: str) -> None:
    """An unspent budget holds the study at one declared number of samples at least: else it does at no contributor.

    Raises: ConfigurationError
    """
    if study.privacy is None or policy.epsilon is None:
        return
    epsilon, counts = policy.epsilon, {party.samples or 1 for party in roster.contributors}
    samples, needed = least_spent(
        study, study.privacy, counts, lambda steps: share_used([steps], epsilon, policy.delta)
    )
    if needed > 1:
        raise ConfigurationError(
            f"{whose} has a privacy budget of epsilon {policy.epsilon:g} at delta {policy.delta:g}, and the study's "
            f"{study.rounds} rounds use {needed:.0%} of it at a contributor of {samples} samples, more at all others: "
            "take more noise, smaller batches or fewer rounds"
        )


_ROUNDS: Final = (0.25, 0.5, 1, 2)
_NOISE: Final = (0.25, 0.5, 1, 2, 4)


def show_least_noise(study_file: Path, delta: float, samples: int, target: float, *, json_output: bool) -> None:
    """The least noise multiplier under which the study of a file keeps the epsilon ``target`` of a record."""
    study = parse_study_table(read_text(study_file), str(study_file))
    drawn, steps = _per_round(samples, study.training)
    steps *= study.rounds
    exact = max(LEAST_NOISE, noise_for(target, delta, drawn, steps, MOST_NOISE))
    found = math.ceil(exact * 1000) / 1000  # no digit that is cut off spends more
    spent = epsilon_of([Steps(drawn, found, steps)], delta)
    values = {"noise_multiplier": found, "epsilon": spent, "delta": delta, "accountant": accountant()}
    what = f"epsilon {spent:.3f} at delta {delta:g} of a record, {accountant()}"
    answer(values, f"noise_multiplier = {found:.3f}    # {what}", json_output=json_output)


def show_epsilon(study_file: Path, delta: float, samples: int, *, json_output: bool) -> None:
    """Show what a study file would spend, and with other rounds and other noise. Raises: ConfigurationError"""
    source = str(study_file)
    study = parse_study_table(read_text(study_file), source)
    if study.privacy is None:
        raise ConfigurationError(f"{source}: the study has no [privacy] table, so nothing bounds what it would spend")
    choices = tuple(_choices(study, study.privacy.noise_multiplier, delta, samples))
    if json_output:
        for one in choices:
            json_line({**one._asdict(), "delta": delta})
        return
    multipliers = sorted({one.noise_multiplier for one in choices})
    shown = table(
        "rounds",
        *(f"noise {multiplier:g}" for multiplier in multipliers),
        title=f"epsilon of one record at a site of {samples} examples at delta {delta:g}; * is the file's",
        caption=accountant(),
    )
    for rounds in sorted({one.rounds for one in choices}):
        of = {one.noise_multiplier: one for one in choices if one.rounds == rounds}
        row = (of[multiplier] for multiplier in multipliers)
        add_row(shown, str(rounds), *(f"{one.epsilon:.3f}{'*' if one.as_written else ''}" for one in row))
    console().print(shown)


class _Choice(NamedTuple):
    """So many rounds under one noise multiplier, and what they spend."""

    rounds: int
    noise_multiplier: float
    as_written: bool
    epsilon: float


def _choices(study: StudyTable, written: float, delta: float, examples: int) -> Iterator[_Choice]:
    """The file's rounds and noise, a few smaller and larger ones."""
    drawn, steps = _per_round(examples, study.training)
    for rounds in sorted({max(1, round(study.rounds * times)) for times in _ROUNDS}):
        for multiplier in sorted({min(MOST_NOISE, max(LEAST_NOISE, written * times)) for times in _NOISE}):
            spent = epsilon_of([Steps(drawn, multiplier, steps * rounds)], delta)
            yield _Choice(rounds, multiplier, (rounds, multiplier) == (study.rounds, written), spent)


def _per_round(examples: int, training: TrainingSpec) -> tuple[float, int]:
    """Return the probability of a record in a step, and the steps of a round."""
    return drawing_probability(examples, training.batch_size), steps_of(examples, training)


def show_rankings(state_dir: Path, study: str | None, *, json_output: bool) -> None:
    """The rankings kept below ``state_dir``. Raises: ConfigurationError when there are none"""
    found = sorted((state_dir / "studies").glob(f"*/{RANKING_FILE}"))
    chosen = [path for path in found if study in (None, path.parent.name)]
    if not chosen:
        which = "any study" if study is None else f"study {study!r}"
        raise ConfigurationError(
            f"key 'state_dir': {state_dir} has no ranking of {which}; the requester keeps one once the sites of a "
            "study with a [ranking] table were ranked"
        )
    for path in chosen:
        ranking = StudyJournal(state_dir, path.parent.name).read(path, Ranking)
        if ranking is not None and json_output:
            sys.stdout.write(ranking.model_dump_json() + "\n")
        elif ranking is not None:
            _print_ranking(ranking)


def _print_ranking(ranking: Ranking) -> None:
    if ranking.problem or ranking.own_loss is None or ranking.judged_on is None:
        console().print(plain(f"{ranking.study}: the sites were not ranked: {ranking.problem}"))
        for absent in ranking.unranked:
            console().print(plain(f"  {absent.site}: {absent.reason}"))
        return
    title = f"{ranking.study}: transfer losses on {ranking.requester}'s {ranking.judged_on.value} examples"
    exact = None if ranking.error_bound is None else f"exact to {ranking.error_bound:.1g}"
    shown = table("rank", "site", "transfer loss", title=title, caption=exact)
    for place, one in enumerate(ranking.sites, 1):
        add_row(shown, str(place), one.site, "failed its range check" if one.loss is None else f"{one.loss:.4f}")
    for absent in ranking.unranked:
        add_row(shown, "", absent.site, f"not ranked: {absent.reason}")
    own = f"{ranking.requester} itself{ranking.judged_on.caveat}"
    add_row(shown, "", own, f"{ranking.own_loss:.4f}", style="dim")
    console().print(shown)


_NOT_PRIVATE = (
    "counts and sums are rounded, columns and categories of few patients left out; rounded sums move a figure by at "
    "most what stands behind ±. This is not differential privacy. Quantiles are approximate"
)
_OTHERS = "(others)"
_WITHIN = ("mean_within", "sd_within")


def show_summary(state_dir: Path, study: str, *, json_output: bool, csv_output: bool, scaling: Path | None) -> None:
    """Show what the sites of a study opened together. Raises: ConfigurationError where there is nothing"""
    summary, opened = _read_summary(state_dir, study)
    if scaling is not None:
        common = scaling_of(opened, summary.study, summary.round)
        rewrite(scaling, scaling_text(common))
        sys.stderr.write(f"{scaling}: {len(common.columns)} columns, digest {common.digest}\n")
        unknown = [one.name for one in opened.numeric if spread_unknown(one)]
        if unknown:
            sys.stderr.write(
                f"{scaling}: {', '.join(unknown)}: rounding may have made half of the SD or more; the largest SD that "
                "fits is written: declare a narrower range in the next study's schema, or centre and spread\n"
            )
    if json_output:
        sys.stdout.write(summary.model_dump_json() + "\n")
    elif csv_output:
        _write_csv(opened)
    else:
        console().print(table_of(opened, f"{study}: {len(summary.sites)} sites: {', '.join(summary.sites)}"))


def _read_summary(state_dir: Path, study: str) -> tuple[Summary, TableOne]:
    folder = state_dir / "studies" / study
    found = StudyJournal(state_dir, study).read(folder / SUMMARY_FILE, Summary) if folder.is_dir() else None
    if found is None:
        raise ConfigurationError(
            f"key 'state_dir': {state_dir} has no summary of study {study!r}; a site keeps one once the summaries of a "
            "study with a [summary] table were summed"
        )
    if found.table is None:
        raise ConfigurationError(f"study {study!r} has no summary: {found.problem}")
    return found, found.table


def table_of(opened: TableOne, title: str) -> Table:
    """Table one, for a terminal."""
    shown = table("column", "values", "missing", "mean", "SD", "median (quartiles)", title=title, caption=_NOT_PRIVATE)
    for one in opened.numeric:
        mean, sd = _text(one.mean, one.mean_within), _text(one.sd, one.sd_within)
        add_row(shown, one.name, str(one.values), str(one.missing), mean, sd, _quartiles(one))
    for column in opened.categories:
        add_row(shown, column.name, str(column.values), str(column.missing), "", "", "")
        for name, count in _counts(column):
            add_row(shown, f"  {name}", str(count), "", _share(count, column.values), "", "", style="dim")
    for pair in opened.covariances:
        shown.add_section()
        name = f"{pair.first} x {pair.second}"
        add_row(shown, name, str(pair.values), "", f"covariance {_text(pair.covariance, pair.within)}", "", "")
    return shown


def _write_csv(opened: TableOne) -> None:
    """A line per column or category; bins are the histogram's counts, from the range's lower end on."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    quantiles = [f"q{round(100 * at):02d}" for at in QUANTILES]
    writer.writerow(
        ["column", "category", "values", "missing", "mean", "sd", *quantiles, "low", "high", "bins", *_WITHIN]
    )
    for one in opened.numeric:
        values = [str(quantile.value) for quantile in one.quantiles] or [""] * len(quantiles)
        bins = " ".join(map(str, one.histogram))
        numbers = (one.values, one.missing, one.mean, one.sd, *values, one.low, one.high, bins)
        writer.writerow([one.name, "", *numbers, one.mean_within, one.sd_within])
    blank = [""] * (2 + len(quantiles) + 3 + len(_WITHIN))
    for column in opened.categories:
        writer.writerow([column.name, "", column.values, column.missing, *blank])
        for name, count in _counts(column):
            writer.writerow([column.name, name, count, "", *blank])


def _counts(column: CategorySummary) -> list[tuple[str, int]]:
    return [(_OTHERS if one.name is None else one.name, one.count) for one in column.counts]


def _text(value: float | None, within: float | None) -> str:
    if value is None:
        return "too few"
    return f"{value:.4g}" if within is None else f"{value:.4g} ± {within:.2g}"


def _share(count: int, of: int) -> str:
    return f"{100 * count / of:.0f} %" if of else ""


def _quartiles(one: NumericSummary) -> str:
    at = {quantile.at: quantile.value for quantile in one.quantiles}
    return f"{at[0.5]:.4g} ({at[0.25]:.4g} to {at[0.75]:.4g})" if at else ""
