"""A study's results beside its model, opened once: a summary of the sites' tables, and a ranking of the sites.

A summary at a site: what it shares of its table, and what all of them opened (docs/protocol.md 17). A ranking before
training: what the requester asks with, opens and keeps (docs/protocol.md 8).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from client_agent.learning.learner import Learner
from client_agent.learning.ridge import JudgedOn
from client_agent.site.events import Shown
from host.frozen import Frozen
from protocol.arithmetic.fixed_point import Real
from protocol.errors import ProtocolViolation, UnusableUpdate
from protocol.messages.control import ColumnRole, Purpose, RankingSpec, Study, SummarySpec, TableSchema
from protocol.messages.specifications import summarised
from protocol.mpc.measurement import OpenedSite
from protocol.policy.site_policy import SitePolicy
from protocol.protection.interface import Encoded
from protocol.protection.shares import encode_integers
from protocol.ranking import TransferLoss, predictor, ranked
from protocol.summary.protection import (
    OwnColumn,
    Protection,
    Question,
    counts_question,
    shared_vector,
    summary_questions,
)
from protocol.summary.table_one import TableOne

if TYPE_CHECKING:
    from client_agent.data.values import Values

SUMMARY_FILE: Final = "summary.json"


class Summary(Frozen):
    """``sites`` are all in the sum, the requester among them; ``problem`` says why there is no table.

    ``least_examples`` is the study's: a site may have asked for more. This is not differentially private.
    """

    study: str
    round: int
    sites: tuple[str, ...] = ()
    least_examples: int
    rounded_to: int
    problem: Shown = ""
    table: TableOne | None = None


def spec_of(study: Study) -> SummarySpec:
    """Raises: ProtocolViolation for a study that sums no summaries"""
    if study.summary is None:
        raise ProtocolViolation(f"study {study.name!r} sums no summaries")
    return study.summary


def summary_of(
    study: Study, number: int, sites: tuple[str, ...] = (), table: TableOne | None = None, problem: str = ""
) -> Summary:
    """The summary as a site keeps it: the sites of the round and their table, or why there is none."""
    least, to = spec_of(study).least_examples, spec_of(study).rounded_to
    found = {"sites": sites, "table": table, "problem": problem}
    return Summary(study=study.name, round=number, least_examples=least, rounded_to=to, **found)


def site_columns(study: Study, folder: Path) -> tuple[Values, ...]:
    """The columns of the site's training part that a summary has, as ``moiety data prepare`` kept them.

    Raises: ConfigurationError, also where the folder was made by another schema
    """
    from client_agent.data.rows import load_rows
    from client_agent.learning.data import require_made_by_schema

    schema = require_schema(study)
    require_made_by_schema(study, folder)
    kept = load_rows(folder, schema)
    return tuple(kept[column.name] for column in summarised(schema))


def require_schema(study: Study) -> TableSchema:
    """Raises: ProtocolViolation for a study without a schema"""
    if study.data_schema is None:
        raise ProtocolViolation(f"study {study.name!r} has no schema")
    return study.data_schema


def encode_summary(study: Study, columns: Sequence[Values], policy: SitePolicy, key: bytes) -> Encoded:
    """A site's protected table as plain ring integers; the larger of the study's and the site's threshold counts.

    Raises: UnusableUpdate
    """
    return encode_integers(shared_vector(study.summary_layout, columns, _protection(study, policy, key)))


def asked_of_columns(study: Study, folder: Path, policy: SitePolicy, key: bytes) -> tuple[Question, ...]:
    """Return the questions of the study's summary to each column of this site's folder. Raises: ConfigurationError"""
    from client_agent.data.rows import kept_own_columns

    columns = site_columns(study, folder)
    own = kept_own_columns(folder, require_schema(study))
    called = [own[column.name] for column in summarised(require_schema(study))]
    return summary_questions(study.summary_layout, called, columns, _protection(study, policy, key))


def asked_of_classes(study: Study, folder: Path, counts: Sequence[int], key: bytes) -> Question:
    """The question of class counts; without a schema it may be about any column. Raises: ConfigurationError"""
    from client_agent.data.rows import kept_own_columns

    schema = study.data_schema
    targets = () if schema is None else schema.having(ColumnRole.TARGET)
    if schema is None or not targets:
        return counts_question(OwnColumn("", ""), "class", counts, key)
    kept = kept_own_columns(folder, schema)
    own = [kept[target.name] for target in targets]
    of_all = OwnColumn(", ".join(sorted(one.name for one in own)), own[0].named_in)
    return counts_question(of_all, ", ".join(target.name for target in targets), counts, key)


def _protection(study: Study, policy: SitePolicy, key: bytes) -> Protection:
    spec = spec_of(study)
    return Protection(key, max(spec.least_examples, policy.least_examples), spec.rounded_to)


RANKING_FILE: Final = "ranking.json"


class RankedSite(Frozen):
    """One line; ``loss`` is None for a site that failed its range check."""

    site: str
    loss: float | None


class UnrankedSite(Frozen):
    """A site that contributed no model, and why as far as it said so."""

    site: str
    reason: Shown


class Ranking(Frozen):
    """The smaller the loss, the more a site's data resemble the requester's; kept by the requester alone.

    ``own_loss`` is the requester's own model on the same examples, which it was trained on where ``judged_on`` says
    training; ``error_bound`` how far a loss can be from the plain
    one, by fixed point's rounding. ``problem`` says why there is no ranking, where there is none.
    """

    study: str
    requester: str
    round: int
    problem: Shown = ""
    judged_on: JudgedOn | None = None
    own_loss: float | None = None
    error_bound: float | None = None
    sites: tuple[RankedSite, ...] = ()
    unranked: tuple[UnrankedSite, ...] = ()


def losses_of(
    opened: Sequence[OpenedSite], constant: float, scale: float
) -> tuple[tuple[TransferLoss, ...], tuple[str, ...]]:
    """Losses of the sites that passed, smallest first, and the names of those that did not."""
    losses = tuple(
        TransferLoss(one.site, one.inner_product / scale + constant) for one in opened if one.inner_product is not None
    )
    return ranked(losses), tuple(one.site for one in opened if not one.in_range)


def ranking_spec(study: Study) -> RankingSpec:
    """Raises: ProtocolViolation for a study that ranks nobody"""
    if study.ranking is None:
        raise ProtocolViolation(f"study {study.name!r} ranks no sites")
    return study.ranking


def model_vector(learner: Learner, study: Study, round_number: int) -> Real:
    """Return a site's contribution to a ranking. -> float64[D]

    Raises: UnusableUpdate, when there is no such model or it is longer than the study allows
    """
    allowed = study.parameters_in(Purpose.RANKING).clip_norm
    vector = predictor(learner.ridge(ranking_spec(study).penalty))
    length = float(np.linalg.norm(vector))
    if length > allowed:
        raise UnusableUpdate(
            f"round {round_number}: this site's ridge regression has a vector of length {length:.3g}, the ranking's "
            f"clip_norm allows {allowed:g}: rank with a larger one, or scale the features"
        )
    return vector
