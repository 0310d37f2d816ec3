"""The same sites and the same question each time that data are summed (docs/protocol.md 17).

Class counts and summaries are sums of the data as they are. Two of them whose sites differ in one show that one's; the
requester's data are in the sum too, so over the same contributors for two requesters they show the one's to the other.
Three whose sites differ in many can show one as well, and no site need be in all three: so the data of a site are in
sums over one set of sites, unless it allows more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

from pydantic import Field

from protocol.errors import Clause, PolicyRefusal
from protocol.parameters import Record
from protocol.policy.exposure import MOST_RELEASE_SETS, UNKNOWN_REQUESTER, release_sets, release_sets_number
from protocol.summary.protection import Question

LEAST_APART: Final = 3


class Cohort(Record):
    """The contributors of one such round, by their keys. ``released`` are those summed, None while that is unknown.

    ``requester`` is the key of the site that asked and is in every sum; it is unknown of rounds that an older release
    wrote down. ``questions`` are what this site answered in it.
    """

    study_digest: str
    round: Annotated[int, Field(ge=1)]
    listed: tuple[str, ...]
    least: Annotated[int, Field(ge=0)]
    released: tuple[str, ...] | None = None
    questions: tuple[Question, ...] = ()
    requester: str = UNKNOWN_REQUESTER

    @property
    def name(self) -> tuple[str, int]:
        """Study and round."""
        return self.study_digest, self.round

    def asked_by(self, other: Cohort) -> str:
        """The requester's key, which all rounds of one study have in common."""
        return other.requester if self.study_digest == other.study_digest else self.requester

    def sums(self) -> list[frozenset[str]]:
        """The sets of contributors of which one was summed, or can be, as far as is known."""
        if self.released is not None:
            return [frozenset(self.released)]
        return [frozenset(chosen) for chosen in release_sets(self.listed, self.least) if chosen]


def check_cohort(new: Cohort, known: Sequence[Cohort], colluders: int, most: int) -> None:
    """Whatever the new round releases, each earlier sum is over the same sites, the requester among them.

    Where ``most`` different sets of sites are allowed, as many contributors differ as make the larger sum, with
    ``colluders`` three besides; what three or more such sums show together is not looked at. An unknown requester is
    taken for another one, except within one study. An earlier word about the same round does not count.

    Raises: PolicyRefusal, clause ``cohort``
    """
    advice = (
        "announce exactly the contributors of the earlier sum, as the same requester and with their number as the "
        "least number"
    )
    if release_sets_number(len(new.listed), new.least) > MOST_RELEASE_SETS:
        raise PolicyRefusal(Clause.COHORT, f"too many sets of sites could be summed to look at them; {advice}")
    others = [one for one in known if one.name != new.name]
    earlier = {(chosen, one.asked_by(new)): one for one in others for chosen in one.sums()}
    sets = {chosen | {requester} for chosen, requester in earlier}
    for chosen in new.sums():
        for (before, requester), one in earlier.items():
            if requester != UNKNOWN_REQUESTER and chosen | {new.requester} == before | {requester}:
                continue
            differ, apart = len(chosen ^ before), max(LEAST_APART + colluders, new.least, one.least)
            if most > 1 and differ >= apart and len(sets | {chosen | {new.requester}}) <= most:
                continue
            found = f"{differ} sites more or fewer" if differ else "the same contributors for another requester"
            demanded = (
                f"at least {apart} are demanded and {most} sets of sites in all, or" if most > 1 else "allowed are"
            )
            raise PolicyRefusal(
                Clause.COHORT,
                f"class counts or summaries over this data were summed in round {one.round} of study "
                f"{one.study_digest[:16]}, and this round may sum {found}, {demanded} the same sites (most_cohorts = "
                f"{most} in this site's policy): {advice}",
            )


def check_questions(new: Cohort, known: Iterable[Cohort], most: int) -> None:
    """No column has answered more than ``most`` questions with this round; one that was answered may come again.

    An earlier word about the same round does not count. Raises: PolicyRefusal, clause ``question``
    """
    earlier = [question for one in known if one.name != new.name for question in one.questions]
    for question in new.questions:
        _check(question, [one for one in new.questions if question.about_the_same(one)], earlier, most)


def _check(question: Question, now: Sequence[Question], earlier: Sequence[Question], most: int) -> None:
    before = [one for one in earlier if question.about_the_same(one)]
    answered = {one.answer for one in before}
    asked = {one.answer for one in now}
    if asked <= answered or len(answered | asked) <= most:
        return
    other = next(one for one in (*before, *now) if one.answer != question.answer)
    advice = (
        "ask exactly the earlier question, or leave the column out; a site that knows what it does sets "
        "most_questions in its policy"
    )
    what = f"column {question.named!r} would answer another question than before, and the difference of both counts"
    raise PolicyRefusal(
        Clause.QUESTION,
        f"{what} single patients: {_difference(question, other)}, {most} allowed: {advice}",
        f"{what} single patients (another range, bins, categories, rounding or columns beside it, or other rows): "
        f"{advice}",
    )


def _difference(question: Question, other: Question) -> str:
    name = "" if other.column == question.column else f" (as column {other.column!r})"
    now = [line for line in question.asked if line not in other.asked]
    before = [line for line in other.asked if line not in question.asked]
    if not now and not before:
        return f"the same was asked{name} of other rows or values"
    return f"asked are {', '.join(now)}, the other time{name} {', '.join(before)}"
