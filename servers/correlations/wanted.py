"""Foresee the correlations of the next round, so that they are made before it is locked (docs/protocol.md 7)."""

from __future__ import annotations

from protocol.messages.control import MOST_RANKING_ROUNDS, Purpose, Roster, RoundState
from protocol.mpc.measurement import product_lengths
from servers.store.study_records import RoundRecord, StudyRecord


def demand(roster: Roster, study: StudyRecord, last: RoundRecord | None) -> list[tuple[int, ...]]:
    """Product lengths of every site, as far as the last round or the rule tells; the requester's place is 0.

    When a rule measures again is not known here; what such a round lacks is made once it is announced.
    """
    of = study.study
    if ranks_next(study, last):
        opens, parameters = Purpose.RANKING.plan.opened(of.rule.needs), of.parameters_in(Purpose.RANKING)
        return [product_lengths(opens, place, place == 0, parameters) for place in range(len(roster.sites))]
    if last is not None and last.announcement.message.purpose.plan.dispensable:
        last = None
    counting = of.rule.name.counts_classes and (last is None or last.progress.state is RoundState.SKIPPED)
    if not of.protection.plan.opens and not counting:
        return []
    contributors, opens = len(roster.contributors), of.rule.needs
    if last is None and of.last_round(Purpose.MEASURE):
        opens = Purpose.MEASURE.plan.opened(opens)
    elif last is not None and last.state is not RoundState.CLOSED:
        contributors, opens = len(last.announcement.message.listed), last.announcement.message.opens
    return [product_lengths(opens, place, place == 0, of.parameters) for place in range(contributors + 1)]


def ranks_next(study: StudyRecord, last: RoundRecord | None) -> bool:
    """Return whether the round under way, or the next one, ranks the sites: the first, and each try after a skip."""
    if study.study.ranking is None or last is None:
        return study.study.ranking is not None
    if last.announcement.message.purpose.plan.summed or last.state is RoundState.RANKED:
        return False
    return last.state is not RoundState.SKIPPED or last.key.round < MOST_RANKING_ROUNDS
