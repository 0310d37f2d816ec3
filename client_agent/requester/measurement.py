"""The rounds that sum nothing, as the requester drives them: a measurement, and the ranking (docs/protocol.md 8, 10).

Like any measured round up to the products; the ranking's vectors are the sites' linear models. Then the servers end
the round, and the requester opens what both keep for it; a ranking's, once, into ``ranking.json``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from client_agent.learning.ridge import JudgedOn, JudgingForm
from client_agent.requester.openings import AROUND_OPENED, query_vector
from client_agent.requester.own_update import own_noise
from client_agent.requester.round import RequesterRound
from client_agent.requester.study import Refused, RequesterStudy, RoundPlan, Settled
from client_agent.site.events import EventKind, RoundEnd
from client_agent.study.participant import Participant
from client_agent.study.results import RANKING_FILE, RankedSite, Ranking, UnrankedSite, losses_of, ranking_spec
from host.files import write_pieces
from host.frozen import Frozen
from protocol.arithmetic.ring import Ring
from protocol.errors import ProtocolViolation
from protocol.messages.control import MOST_RANKING_ROUNDS, Announcement, Purpose, RoundView
from protocol.protection.shares import encode_vector
from protocol.ranking import error_bound, predictor, query_scale

_MEASUREMENT_LOST: Final = "one server lost its half of what is opened, and a model's updates are measured once"
_NOBODY: Final = "nobody was measured: this site, or every other one, failed its check"


class MeasuringRound(RequesterRound):
    """Drives a measurement to its end."""

    def ended(self, a: RoundView, b: RoundView) -> Settled | None:
        """Once both servers have closed it: what it opened is on disk before the round is settled."""
        if not self.opened_without_sum(a, b):
            return super().ended(a, b)
        encoded = self._encoded
        if encoded is None:
            raise ProtocolViolation(f"round {self._number} was closed without this requester's update")
        opened = self.opened_or_none(lambda: self._openings.opened(a, b, self._facts()))
        if opened is None:
            return self.settled(RoundEnd.CLOSED, a, _MEASUREMENT_LOST)
        noise = own_noise(self._owner, self._number).variance
        measured = opened.measured.model_copy(update={"requester_norm": encoded.norm, "variance": noise})
        reason = "" if measured.took_part else _NOBODY
        return replace(self.settled(RoundEnd.CLOSED, a, reason), measured=measured, failed_check=opened.left_out)


def after_measurement(owner: RequesterStudy, settled: Settled, number: int) -> dict[str, object]:
    """Return the requester's state after a measurement: the rule has learnt, or one more try is behind it."""
    progress = owner.progress
    changes: dict[str, object] = {"measured_rounds": progress.measured_rounds + 1}
    if settled.measured is not None and settled.measured.took_part:
        return changes | {"rule_state": owner.rule.apply(progress.rule_state, settled.measured), "measure_tries": 0}
    if settled.end is RoundEnd.SKIPPED:
        changes |= owner.after_skip(settled, number)
    return changes | {"measure_tries": progress.measure_tries + 1}


_QUERY: Final = "judging.ring"
_RECORD: Final = "judging.json"


class Judging(Frozen):
    """The requester's memory of its query: its scale, and what an opened product lacks."""

    scale: float
    constant: float
    error_bound: float
    own_loss: float
    judged_on: JudgedOn


def try_judging(owner: Participant) -> None:
    """The requester's form and own model, before the study is begun. Raises: UnusableUpdate"""
    _own_loss(owner, owner.learner.judging_form())


def _own_loss(owner: Participant, judging: JudgingForm) -> float:
    return judging.form.loss(predictor(owner.learner.ridge(ranking_spec(owner.study).penalty)))


def make_judging(owner: Participant, round_number: int) -> Judging:
    """The requester's query, encoded in the journal; made only the first time, so that a restart asks the same.

    Raises: UnusableUpdate
    """
    folder, parameters = owner.journal.round_folder(round_number), owner.study.parameters_in(Purpose.RANKING)

    def made() -> Judging:
        judging = owner.learner.judging_form()
        form = judging.form
        scale = query_scale(form.length, parameters.clip_norm)
        seed = owner.context.randomness.bytes(32, f"judging rounding {owner.study_digest} round {round_number}")
        write_pieces(folder / _QUERY, encode_vector(form.vector * scale, parameters, seed).pieces)
        return Judging(
            scale=scale,
            constant=form.constant,
            error_bound=error_bound(parameters, form.length),
            own_loss=_own_loss(owner, judging),
            judged_on=judging.judged_on,
        )

    return owner.journal.once(folder / _RECORD, Judging, made)


_RANKING_LOST: Final = (
    "one server lost its half of what is opened, and sites are ranked once per study; another study can rank them"
)


class RankingRound(RequesterRound):
    """Drives the ranking to its end."""

    def __init__(self, owner: RequesterStudy, plan: RoundPlan) -> None:
        super().__init__(owner, plan)
        self._parameters = owner.study.parameters_in(Purpose.RANKING)

    def prepare_own(self) -> None:
        """The requester's part of the vectors is zeros; what it asks with is its query. Raises: UnusableUpdate"""
        self._encoded = self._owner.encode(self._announcement, self.plan.weight_list.grid)
        make_judging(self._owner, self._number)

    def ended(self, a: RoundView, b: RoundView) -> Settled | None:
        """Once both servers have ended the ranking: what it opened is on disk before the round is settled."""
        if not self.opened_without_sum(a, b):
            return super().ended(a, b)
        ranking = self._opened(a, b)
        self._owner.event(EventKind.STUDY, self._number, _summary(ranking))
        return replace(self.settled(RoundEnd.RANKED, a, ranking.problem), clipped=None, requester_norm=None)

    def query_vector(self, challenge: bytes, targets: tuple[str, ...]) -> Ring:
        """The same query for every site."""
        ones = (self._parameters.weight_grid,) * len(targets)
        query = self._owner.encoded_at(self._number, _QUERY, self._parameters.dimension)
        return query_vector(challenge, query, ones, self._parameters)

    def _opened(self, a: RoundView, b: RoundView) -> Ranking:
        owner = self._owner

        def made() -> Ranking:
            lost = self._ranking().model_copy(update={"problem": _RANKING_LOST})
            return self.opened_or_none(lambda: self._open(a, b)) or lost

        return owner.journal.once(owner.journal.folder / RANKING_FILE, Ranking, made, AROUND_OPENED)

    def _open(self, a: RoundView, b: RoundView) -> Ranking:
        judging, own = make_judging(self._owner, self._number), self._context.site
        agreed, opened = self._openings.sites(a, b)
        others = tuple(one for one in opened if one.site != own)
        losses, failed = losses_of(others, judging.constant, judging.scale)
        said = {refused.site: _said(refused) for refused in self._declines.values()}
        absent = [site for site in self._announcement.listed if site not in agreed.sites]
        return self._ranking().model_copy(
            update={
                "sites": (
                    *(RankedSite(site=one.site, loss=one.loss) for one in losses),
                    *(RankedSite(site=site, loss=None) for site in failed),
                ),
                "unranked": tuple(
                    UnrankedSite(site=site, reason=said.get(site, "it contributed nothing")) for site in absent
                ),
            }
        )

    def _ranking(self) -> Ranking:
        judging = make_judging(self._owner, self._number)
        return Ranking(
            study=self._owner.study.name,
            requester=self._context.site,
            round=self._number,
            judged_on=judging.judged_on,
            own_loss=judging.own_loss,
            error_bound=judging.error_bound,
        )


def after_ranking(owner: RequesterStudy, settled: Settled, announcement: Announcement) -> dict[str, object]:
    """Return the requester's state after a ranking: ranked, one more try, or no more tries, which ``ranking.json`` then
    says.

    Who declined to be ranked is asked for updates all the same.
    """
    number = announcement.round
    tries = owner.progress.ranking_rounds + 1
    changes: dict[str, object] = {"ranking_rounds": tries, "ranked": settled.end is RoundEnd.RANKED}
    if settled.end is RoundEnd.RANKED:
        return changes
    problem = _unwanted(settled, announcement)
    if not problem and tries >= MOST_RANKING_ROUNDS:
        problem = f"{tries} rounds were skipped, the last one because: {settled.reason}"
    if problem:
        gone = Ranking(
            study=owner.study.name,
            requester=owner.context.site,
            round=number,
            problem=problem,
            unranked=tuple(UnrankedSite(site=one.site, reason=_said(one)) for one in settled.declines),
        )
        owner.journal.write(owner.journal.folder / RANKING_FILE, gone)
        owner.event(EventKind.STUDY, number, _summary(gone))
        changes["ranked"] = True
    return changes | owner.after_skip(settled, number)


def _unwanted(settled: Settled, announcement: Announcement) -> str:
    """Why another try would end like this one: those who declined for good leave too few sites; "" if they do not."""
    declined = sum(not one.passes for one in settled.declines)
    willing, needed = len(announcement.listed) - declined, announcement.least_contributors
    if willing >= needed:
        return ""
    return f"{willing} sites were willing, {needed} are needed; trying again would not change that"


def _said(refused: Refused) -> str:
    return f"{refused.code.value}: {refused.reason}"


def _summary(ranking: Ranking) -> str:
    if ranking.problem:
        return f"the sites were not ranked: {ranking.problem}"
    return f"{len(ranking.sites)} sites were ranked; moiety study ranking shows it"
