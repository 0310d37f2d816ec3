"""Every clause that depends on what a site remembers of earlier rounds (docs/protocol.md 9)."""

from __future__ import annotations

import pytest

from protocol.errors import Clause, OutcomeUnknown
from protocol.messages.control import Announcement, Purpose, WeightList
from protocol.parameters import Needs
from protocol.policy.clauses import check_outcome_known, check_same_sum_again
from protocol.policy.memory import (
    LeftOut,
    SiteMemory,
    remember_contribution,
    remember_left_out,
    remember_release,
    remember_skip,
)
from protocol.policy.site_policy import SitePolicy
from tests.unit.policy.lists import EVEN, announcement, check, refused, weight_list


class TestNeverRises:
    def seen(self, weights: dict[str, int]) -> SiteMemory:
        of = weight_list(weights)
        return remember_skip(remember_contribution(SiteMemory(), announcement(of), of), 1)

    def test_equal_or_lower_passes_and_higher_does_not(self) -> None:
        memory = self.seen({"b": 20, "c": 20, "d": 20, "e": 20})
        check(weight_list({"b": 20, "c": 19, "d": 20, "e": 20}, 2), memory=memory)
        with refused(Clause.NEVER_RISES, "'d' is listed with 21/32", "20"):
            check(weight_list({"b": 20, "c": 19, "d": 21, "e": 20}, 2), memory=memory)

    def test_the_last_sums_list_may_come_again_and_no_other(self) -> None:
        """Where a newer list was declined for what its sum would have given away."""
        first, lower = weight_list(EVEN), weight_list(EVEN | {"b": 20}, 2)
        memory = remember_release(SiteMemory(), announcement(first), first, tuple(EVEN))
        memory = remember_contribution(memory, announcement(lower, version=1), lower)
        memory = remember_skip(memory, 2)
        again = weight_list(EVEN, 3)
        check(again, announcement(again, version=1), memory=memory)
        raised = weight_list(EVEN | {"b": 21}, 3)
        with refused(Clause.NEVER_RISES, "'b' is listed with 21/32"):
            check(raised, announcement(raised, version=1), memory=memory)

    def test_only_for_rules_that_declare_it(self) -> None:
        check(weight_list(EVEN, 2), memory=self.seen({"b": 20, "c": 20, "d": 20, "e": 20}), never_rises=False)

    def test_a_late_joiner_has_no_last_weight(self) -> None:
        check(weight_list(EVEN | {"f": 32}, 2), memory=self.seen(EVEN))

    def test_a_site_that_was_not_listed_for_a_while_is_remembered(self) -> None:
        memory = self.seen({"b": 32, "c": 32, "d": 32, "e": 10})
        middle = weight_list({"b": 32, "c": 32, "d": 32}, 2)
        memory = remember_skip(remember_contribution(memory, announcement(middle), middle), 2)
        with refused(Clause.NEVER_RISES, "'e'"):
            check(weight_list(EVEN, 3), memory=memory)


def test_the_model_never_goes_back() -> None:
    of = weight_list(EVEN)
    memory = remember_contribution(SiteMemory(), announcement(of, version=5), of)
    check(of, announcement(of, version=5), memory=memory)
    check(of, announcement(of, version=6), memory=memory)
    with refused(Clause.MODEL_VERSION, "model 4", "model 5"):
        check(of, announcement(of, version=4), memory=memory)


class TestSameSumAgain:
    def memory(self, released: tuple[str, ...]) -> SiteMemory:
        of = weight_list(EVEN)
        return remember_release(SiteMemory(), announcement(of), of, released)

    def test_exactly_the_same_passes(self) -> None:
        again = weight_list({"b": 32, "c": 32, "d": 32}, 2)
        check(again, announcement(again), memory=self.memory(("b", "c", "d")))

    @pytest.mark.parametrize(
        "weights", [{"b": 32, "c": 32, "e": 32}, {"b": 32, "c": 32, "d": 31}, {"b": 32, "c": 32, "d": 32, "e": 32}]
    )
    def test_other_sites_or_weights_do_not(self, weights: dict[str, int]) -> None:
        again = weight_list(weights, 2)
        with refused(Clause.SAME_SUM_AGAIN, "model 0", "b: 32, c: 32, d: 32"):
            check(again, announcement(again), memory=self.memory(("b", "c", "d")))

    def test_against_the_next_model_everything_is_open_again(self) -> None:
        again = weight_list({"b": 32, "c": 32, "e": 30}, 2)
        check(again, announcement(again, version=1), memory=self.memory(("b", "c", "d")))


class TestMeasuredTwice:
    def memory(self, *rounds: int, opens: Needs = Needs.DISTANCES) -> SiteMemory:
        memory = SiteMemory()
        for r in rounds:
            of = weight_list(EVEN, r)
            memory = remember_skip(remember_contribution(memory, announcement(of, opens=opens), of), r)
        return memory

    def test_two_rounds_and_no_third(self) -> None:
        third = weight_list(EVEN, 3)
        check(third, memory=self.memory(1))
        with refused(Clause.MEASURED_TWICE, "2 rounds", "model 0"):
            check(third, memory=self.memory(1, 2))

    def test_a_burnt_round_tried_again_is_the_same_round(self) -> None:
        assert self.memory(1, 2, 2).measured_rounds == (1, 2)
        check(weight_list(EVEN, 2), memory=self.memory(1, 2))

    def test_unmeasured_rounds_and_newer_models_are_free(self) -> None:
        third = weight_list(EVEN, 3)
        check(third, announcement(third, opens=Needs.NOTHING), memory=self.memory(1, 2))
        check(third, announcement(third, version=1), memory=self.memory(1, 2))
        check(third, memory=self.memory(1, 2, opens=Needs.NOTHING))

    def test_a_newer_model_starts_a_new_count(self) -> None:
        of = weight_list(EVEN, 3)
        memory = remember_contribution(self.memory(1, 2), announcement(of, version=1), of)
        assert memory.measured_rounds == (3,)
        assert memory.released is None


class TestLeftOutTwice:
    def test_once_is_forgiven_twice_is_not(self) -> None:
        agreed, released = ("b", "c", "d", "e"), ("b", "c", "d")
        memory = remember_left_out(SiteMemory(), 1, agreed, released, (), own="b")
        memory = remember_left_out(memory, 1, agreed, released, (), own="b")
        check(weight_list(EVEN, 2), memory=memory)
        memory = remember_left_out(memory, 7, agreed, released, (), own="b")
        with refused(Clause.LEFT_OUT_TWICE, "'e'", r"\[1, 7\]"):
            check(weight_list(EVEN, 8), memory=memory)
        check(weight_list({"b": 32, "c": 32, "d": 32}, 8), memory=memory)

    def test_a_failed_check_is_no_leaving_out(self) -> None:
        memory = SiteMemory()
        for r in (1, 2, 3):
            memory = remember_left_out(memory, r, ("b", "c", "d", "e"), ("b", "c", "d"), ("e",), own="b")
        assert memory == SiteMemory()

    def test_a_site_knows_better_than_a_failed_check_of_its_own(self) -> None:
        memory = SiteMemory()
        for r in (1, 2):
            memory = remember_left_out(memory, r, ("b", "c", "d", "e"), ("c", "d"), ("b", "e"), own="b")
        assert memory.left_out == (LeftOut(site="b", rounds=(1, 2)),)
        with refused(Clause.LEFT_OUT_TWICE, "'b'"):
            check(weight_list(EVEN, 3), memory=memory)

    def test_a_rule_that_selects_leaves_sites_out_as_often_as_it_likes(self) -> None:
        memory = SiteMemory()
        for r in (1, 2, 3):
            memory = remember_left_out(memory, r, ("b", "c", "d", "e"), ("b", "c", "d"), (), own="b")
        check(weight_list(EVEN, 4), memory=memory, rule_selects=True)
        with refused(Clause.LEFT_OUT_TWICE, "'e'"):
            check(weight_list(EVEN, 4), memory=memory)


class TestCountedOnce:
    OF = weight_list(EVEN)
    COUNTS = announcement(OF, opens=Needs.NOTHING, purpose=Purpose.COUNTS)

    def again(self, version: int = 0) -> tuple[WeightList, Announcement]:
        of = weight_list(EVEN, 2)
        return of, announcement(of, opens=Needs.NOTHING, purpose=Purpose.COUNTS, version=version)

    def test_counts_are_summed_before_the_updates_and_bind_no_later_sum(self) -> None:
        check(self.OF, self.COUNTS, needs=Needs.NOTHING)
        memory = remember_contribution(SiteMemory(), self.COUNTS, self.OF)
        memory = remember_release(memory, self.COUNTS, self.OF, tuple(EVEN))
        assert (memory.counted, memory.released, memory.unsettled) == (1, None, None)
        fewer = weight_list({"b": 32, "c": 32, "d": 32}, 2)
        check(fewer, announcement(fewer), memory=memory)

    def test_a_second_time_is_refused_whatever_the_model(self) -> None:
        memory = remember_contribution(SiteMemory(), self.COUNTS, self.OF)
        memory = remember_release(memory, self.COUNTS, self.OF, tuple(EVEN))
        for version in (0, 1):
            with refused(Clause.COUNTED_ONCE, "round 2", "round 1"):
                check(*self.again(version), memory=memory)

    def test_a_site_that_was_away_counts_a_release_it_was_shown(self) -> None:
        memory = remember_release(SiteMemory(model_version=3), self.COUNTS, self.OF, tuple(EVEN))
        assert (memory.counted, memory.model_version) == (1, 3)
        with refused(Clause.COUNTED_ONCE):
            check(*self.again(3), memory=memory)

    def test_a_newer_model_does_not_make_a_site_forget_an_unsettled_count(self) -> None:
        memory = remember_contribution(SiteMemory(), self.COUNTS, self.OF)
        newer = weight_list(EVEN, 5)
        memory = remember_release(memory, announcement(newer, version=1), newer, ("c", "d", "e"))
        assert memory.unsettled is None
        with refused(Clause.COUNTED_ONCE, "not seen both servers skip it"):
            check(*self.again(2), memory=memory)

    def test_a_skipped_count_is_tried_again(self) -> None:
        memory = remember_contribution(SiteMemory(), self.COUNTS, self.OF)
        check(self.OF, self.COUNTS, memory=memory)
        check(*self.again(), memory=remember_skip(memory, 1))
        assert remember_skip(memory, 7).counted == 1

    def test_an_update_round_leaves_the_count_as_it_was(self) -> None:
        memory = remember_contribution(SiteMemory(counted=1), announcement(weight_list(EVEN, 2)), weight_list(EVEN, 2))
        assert memory.counted == 1

    def test_the_list_of_a_count_says_one_for_all(self) -> None:
        of = weight_list(EVEN | {"d": 31})
        told = announcement(of, opens=Needs.NOTHING, purpose=Purpose.COUNTS)
        with refused(Clause.GRID, "'d'"):
            check(of, told)


class TestRankedOnce:
    """A requester that asked with another query each time would solve for the site's model."""

    OF = weight_list(EVEN)
    RANKING = announcement(OF, opens=Needs.INNER_PRODUCTS, purpose=Purpose.RANKING)
    RANKED = remember_contribution(SiteMemory(), RANKING, OF)

    WILLING = SitePolicy(may_rank=True)

    def again(self, number: int = 2, version: int = 0) -> tuple[WeightList, Announcement]:
        of = weight_list(EVEN, number)
        return of, announcement(of, opens=Needs.INNER_PRODUCTS, purpose=Purpose.RANKING, version=version)

    def test_a_second_one_is_refused_also_on_another_model(self) -> None:
        check(self.OF, self.RANKING, policy=self.WILLING)
        for version in (0, 1):
            with refused(Clause.RANKED_ONCE, "round 2 ranks the sites, which round 1 did already"):
                check(*self.again(version=version), memory=self.RANKED, policy=self.WILLING)

    def test_the_same_round_again_and_one_after_a_signed_skip_are_not(self) -> None:
        check(self.OF, self.RANKING, memory=self.RANKED, policy=self.WILLING)
        check(*self.again(), memory=remember_skip(self.RANKED, 1), policy=self.WILLING)
        assert remember_skip(self.RANKED, 7).ranked == 1

    def test_it_leaves_the_measured_rounds_and_sums_of_updates_alone(self) -> None:
        assert (self.RANKED.measured_rounds, self.RANKED.unsettled, self.RANKED.last_listed) == ((), None, ())
        assert (self.RANKED.ranked, self.RANKED.last_accepted) == (1, 1)
        check(weight_list(EVEN, 2), memory=self.RANKED)
        twice = SiteMemory(measured_rounds=(1, 2))
        check(*self.again(3), memory=twice, policy=self.WILLING)

    def test_newer_models_do_not_make_a_site_forget_it(self) -> None:
        of = weight_list(EVEN, 5)
        memory = remember_contribution(self.RANKED, announcement(of, version=3), of)
        assert remember_release(memory, announcement(of, version=3), of, tuple(EVEN)).ranked == 1

    def test_the_list_says_one_for_all(self) -> None:
        of = weight_list(EVEN | {"d": 31})
        with refused(Clause.GRID, "'d'"):
            check(of, announcement(of, opens=Needs.INNER_PRODUCTS, purpose=Purpose.RANKING))


class TestOutcomeUnknown:
    """After round 1 of {b, c, d, e} on model 0, the requester announces round 2 without e on the same model."""

    OF = weight_list(EVEN)
    ACCEPTED = remember_contribution(SiteMemory(), announcement(OF), OF)
    NEXT = weight_list({"b": 32, "c": 32, "d": 32}, 2)

    def test_without_its_end_nothing_more_on_the_same_model(self) -> None:
        assert (self.ACCEPTED.unsettled, self.ACCEPTED.last_accepted) == (1, 1)
        with pytest.raises(OutcomeUnknown, match=r"^outcome_unknown: round 1 used model 0.*skip signed by both"):
            check(self.NEXT, memory=self.ACCEPTED)

    def test_the_round_itself_may_be_looked_at_again(self) -> None:
        check(self.OF, memory=self.ACCEPTED)

    def test_a_skip_of_that_round_settles_it_and_of_another_does_not(self) -> None:
        settled = remember_skip(self.ACCEPTED, 1)
        assert (settled.unsettled, settled.last_accepted) == (None, 1)
        check(self.NEXT, memory=settled)
        assert remember_skip(self.ACCEPTED, 2) == self.ACCEPTED
        assert remember_skip(settled, 1) == settled

    def test_its_release_settles_it_and_then_counts(self) -> None:
        settled = remember_release(self.ACCEPTED, announcement(self.OF), self.OF, tuple(EVEN))
        assert settled.unsettled is None
        with refused(Clause.LEAST_NUMBER):
            check(self.NEXT, memory=settled)
        with refused(Clause.SAME_SUM_AGAIN):
            check_same_sum_again(announcement(self.NEXT), self.NEXT, settled)

    def test_another_rounds_release_against_the_same_model_does_not_settle_it(self) -> None:
        memory = remember_release(self.ACCEPTED, announcement(self.NEXT), self.NEXT, ("b", "c", "d"))
        assert memory.unsettled == 1
        with pytest.raises(OutcomeUnknown):
            check_outcome_known(announcement(weight_list(EVEN, 3)), memory)

    def test_a_newer_model_asks_for_nothing_of_the_older_one(self) -> None:
        check(self.NEXT, announcement(self.NEXT, version=1), memory=self.ACCEPTED)
        newer = remember_release(self.ACCEPTED, announcement(self.NEXT, version=1), self.NEXT, ("b", "c", "d"))
        assert newer.unsettled is None

    def test_a_site_that_declined_has_nothing_to_settle(self) -> None:
        check(self.NEXT, memory=SiteMemory(model_version=0))


def test_a_release_against_an_older_model_changes_nothing() -> None:
    of, old = weight_list(EVEN, 5), weight_list(EVEN, 2)
    memory = remember_release(SiteMemory(), announcement(of, version=5), of, tuple(EVEN))
    assert remember_release(memory, announcement(old, version=4), old, ("b", "c", "d")) == memory
    again = remember_release(memory, announcement(of, version=5), of, ("b", "c", "d"))
    assert again.released is not None
    assert len(again.released.weights) == 3


def test_the_memory_survives_storage() -> None:
    of = weight_list(EVEN)
    memory = remember_contribution(SiteMemory(), announcement(of), of)
    memory = remember_release(memory, announcement(of), of, ("b", "c", "d"))
    memory = remember_left_out(memory, 1, ("b", "c", "d", "e"), ("b", "c", "d"), (), own="b")
    after = weight_list(EVEN, 2)
    memory = remember_contribution(memory, announcement(after), after)
    assert (memory.unsettled, memory.last_accepted) == (2, 2)
    assert SiteMemory.model_validate_json(memory.model_dump_json()) == memory
