"""What a round is for decides what it opens and how it ends; the table says all of it."""

from __future__ import annotations

import pytest

from protocol.messages.control import Announcement, Purpose, RoundState
from protocol.messages.purpose import PURPOSE_PLANS
from protocol.parameters import Needs
from protocol.policy.memory import SiteMemory, remember_contribution
from tests.unit.client_agent.federation import announcement, weight_list


def announced(purpose: Purpose, opens: Needs) -> Announcement:
    return Announcement(**(dict(announcement()) | {"purpose": purpose, "opens": opens}))


def test_every_purpose_has_a_plan() -> None:
    assert set(PURPOSE_PLANS) == set(Purpose)
    assert [purpose for purpose in Purpose if purpose.plan.steps_model] == [Purpose.UPDATE]
    assert {purpose.plan.ends_as for purpose in Purpose} == {RoundState.RELEASED, RoundState.RANKED, RoundState.CLOSED}
    assert [purpose for purpose in Purpose if not purpose.plan.summed] == [Purpose.RANKING, Purpose.MEASURE]


@pytest.mark.parametrize("purpose", list(Purpose))
@pytest.mark.parametrize("opens", list(Needs))
def test_a_round_opens_what_its_purpose_says(purpose: Purpose, opens: Needs) -> None:
    """A round of updates opens what the rule needs: whether it is that, the study says."""
    if purpose.plan.opened(opens) is opens:
        assert announced(purpose, opens).opens is opens
    else:
        with pytest.raises(ValueError, match=purpose.plan.opens_alone):
            announced(purpose, opens)


@pytest.mark.parametrize("purpose", [purpose for purpose in Purpose if purpose.plan.once])
def test_what_a_study_does_once_is_remembered_by_its_round(purpose: Purpose) -> None:
    of = announced(purpose, purpose.plan.opened(Needs.NOTHING))
    after = remember_contribution(SiteMemory(), of, weight_list())
    assert [other for other in Purpose if after.done(other) == of.round] == [purpose]
