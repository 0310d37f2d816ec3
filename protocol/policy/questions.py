"""One question per column: what was asked before is not asked a little differently (docs/protocol.md 17)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from protocol.clauses import Clause
from protocol.policy.cohorts import Cohort
from protocol.policy.refusals import refusal
from protocol.summary.question import Question


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
    raise refusal(
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
