"""Every clause of the sites' policy, kept and broken (docs/protocol.md 9)."""

from __future__ import annotations

from fractions import Fraction

import pytest

from protocol import policy as p
from protocol.errors import PolicyRefusal, ProtocolViolation
from protocol.parameters import Needs, StudyParameters
from protocol.policy import SiteMemory, SitePolicy
from protocol.wire.messages import Announcement, ListedWeight, Purpose, WeightList

STUDY = "ab" * 32
ROSTER = ("b", "c", "d", "e", "f")


def parameters(m: int = 3, t: int = 0, grid: int = 32) -> StudyParameters:
    return StudyParameters(dimension=62, clip_norm=1.0, weight_grid=grid, least_contributors=m, assumed_colluders=t)


def weight_list(weights: dict[str, int], round_number: int = 1, grid: int = 32, study: str = STUDY) -> WeightList:
    return WeightList(
        study_digest=study,
        round=round_number,
        grid=grid,
        weights=tuple(ListedWeight(site=site, numerator=n) for site, n in weights.items()),
        salt="00" * 32,
    )


def announcement(
    of: WeightList,
    m: int = 3,
    opens: Needs = Needs.DISTANCES,
    version: int = 0,
    listed: tuple[str, ...] | None = None,
    digest: str | None = None,
    round_number: int | None = None,
    purpose: Purpose = Purpose.UPDATE,
) -> Announcement:
    return Announcement(
        study_digest=STUDY,
        round=of.round if round_number is None else round_number,
        listed=tuple(w.site for w in of.weights) if listed is None else listed,
        least_contributors=m,
        opens=opens,
        purpose=purpose,
        model_version=version,
        model_digest="cd" * 32,
        weight_list_digest=of.digest() if digest is None else digest,
        closes_at_s=0,
    )


def check(
    of: WeightList,
    told: Announcement | None = None,
    site: str = "b",
    m: int = 3,
    t: int = 0,
    never_rises: bool = True,
    policy: SitePolicy | None = None,
    memory: SiteMemory | None = None,
    contributors: tuple[str, ...] = ROSTER,
    needs: Needs = Needs.DISTANCES,
    own_weight: float | None = None,
    rule_selects: bool = False,
    grid: int = 32,
) -> None:
    p.check_weight_list(
        site,
        announcement(of, m=m) if told is None else told,
        of,
        parameters(m, t, grid),
        rule_declares_never_rising=never_rises,
        policy=policy or SitePolicy(),
        memory=memory or SiteMemory(),
        contributors=contributors,
        needs=needs,
        own_weight=own_weight,
        rule_selects=rule_selects,
    )


def refused(clause: p.Clause, *parts: str) -> object:
    pattern = f"^{clause.value}: .*" + ".*".join(parts)
    return pytest.raises(PolicyRefusal, match=pattern)


EVEN = {"b": 32, "c": 32, "d": 32, "e": 32}


def test_an_ordinary_list_passes_for_every_site() -> None:
    of = weight_list(EVEN)
    for site in EVEN:
        check(of, site=site)
    p.check_for_every_site(
        announcement(of),
        of,
        parameters(),
        rule_declares_never_rising=True,
        policy=SitePolicy(),
        memory=SiteMemory(),
        contributors=ROSTER,
    )


def test_the_requester_finds_the_one_site_that_would_refuse() -> None:
    of = weight_list({"b": 5, "c": 5, "d": 5, "e": 31})
    check(of, site="b")
    with refused(p.Clause.LARGEST_SHARE, "'e'"):
        p.check_for_every_site(
            announcement(of),
            of,
            parameters(),
            rule_declares_never_rising=True,
            policy=SitePolicy(),
            memory=SiteMemory(),
            contributors=ROSTER,
        )


class TestSameRound:
    def test_other_study(self) -> None:
        of = weight_list(EVEN, study="ff" * 32)
        with refused(p.Clause.SAME_ROUND, "another study"):
            check(of, announcement(of))

    def test_other_round(self) -> None:
        of = weight_list(EVEN, round_number=4)
        with refused(p.Clause.SAME_ROUND, "round 4", "round 5"):
            check(of, announcement(of, round_number=5))

    def test_other_digest(self) -> None:
        with refused(p.Clause.SAME_ROUND, "digest"):
            check(weight_list(EVEN), announcement(weight_list(EVEN | {"e": 31})))


class TestAnnouncedSites:
    @pytest.mark.parametrize(
        "listed", [("b", "c", "d"), ("b", "c", "d", "e", "f"), ("b", "c", "d", "f"), ("c", "b", "d", "e")]
    )
    def test_list_and_announcement_differ(self, listed: tuple[str, ...]) -> None:
        of = weight_list(EVEN)
        with refused(p.Clause.ANNOUNCED_SITES):
            check(of, announcement(of, listed=listed))

    def test_this_site_is_not_listed(self) -> None:
        with refused(p.Clause.ANNOUNCED_SITES, "'f' is not listed"):
            check(weight_list(EVEN), site="f")

    def test_a_site_listed_twice(self) -> None:
        of = WeightList(
            study_digest=STUDY,
            round=1,
            grid=32,
            weights=tuple(ListedWeight(site=s, numerator=9) for s in ("b", "c", "d", "b")),
            salt="00" * 32,
        )
        with refused(p.Clause.ANNOUNCED_SITES):
            check(of, announcement(of, listed=("b", "c", "d")))


def test_the_requester_cannot_list_itself_as_a_contributor() -> None:
    with refused(p.Clause.CONTRIBUTORS_ONLY, "'requester'"):
        check(weight_list({"b": 32, "c": 32, "requester": 32}))


class TestGrid:
    def test_other_grid_than_the_studys(self) -> None:
        with refused(p.Clause.GRID, "1/64", "1/32"):
            check(weight_list(EVEN, grid=64))

    @pytest.mark.parametrize("numerator", [0, 33])
    def test_weight_outside_the_grid(self, numerator: int) -> None:
        with refused(p.Clause.GRID, f"'d' has weight {numerator}/32", "1/32 to 32/32"):
            check(weight_list(EVEN | {"d": numerator}))

    def test_both_ends_are_allowed(self) -> None:
        check(weight_list({"b": 1, "c": 32, "d": 32, "e": 1}))


class TestLeastNumber:
    @pytest.mark.parametrize("m", [2, 4])
    def test_another_than_the_studys(self, m: int) -> None:
        of = weight_list(EVEN)
        with refused(p.Clause.LEAST_NUMBER, str(m), "3 are due"):
            check(of, announcement(of, m=m))

    def test_after_a_release_it_is_the_number_released(self) -> None:
        of = weight_list(EVEN)
        memory = p.remember_release(SiteMemory(), announcement(of), of, tuple(EVEN))
        again = weight_list(EVEN, round_number=2)
        check(again, announcement(again, m=4), memory=memory)
        with refused(p.Clause.LEAST_NUMBER, "3", "4 are due"):
            check(again, announcement(again, m=3), memory=memory)


class TestEnoughContributors:
    def test_two_are_not_enough_unless_the_site_says_so(self) -> None:
        of = weight_list(EVEN)
        with refused(p.Clause.ENOUGH_CONTRIBUTORS, "leave 2", "at least 3"):
            check(of, m=2)
        check(of, m=2, policy=SitePolicy(least_contributors=2))

    def test_colluders_do_not_count_whoever_assumes_them(self) -> None:
        of = weight_list(EVEN)
        check(of, m=4, t=1)
        with refused(p.Clause.ENOUGH_CONTRIBUTORS, "4 contributors less 2", "leave 2"):
            check(of, m=4, t=1, policy=SitePolicy(assumed_colluders=2))
        with refused(p.Clause.ENOUGH_CONTRIBUTORS, "leave 2"):
            check(of, m=4, t=2)


class TestLargestShare:
    def test_exactly_sixty_percent_passes_and_one_step_more_does_not(self) -> None:
        # b: 30 of 30 + 10 + 10 = 60 %; e is heavier and not counted
        check(weight_list({"b": 30, "c": 10, "d": 10, "e": 32}))
        with refused(p.Clause.LARGEST_SHARE, "31 of 51", "60.8 %", "0.6"):
            check(weight_list({"b": 31, "c": 10, "d": 10, "e": 32}))

    def test_assumed_colluders_take_their_weight_away(self) -> None:
        of = weight_list({"b": 24, "c": 10, "d": 10, "e": 10, "f": 10})
        check(of, m=4)
        with refused(p.Clause.LARGEST_SHARE, "24 of 34"):
            check(of, m=4, t=2, policy=SitePolicy(least_contributors=2))

    def test_all_contributors_collude(self) -> None:
        of = weight_list(EVEN)
        with refused(p.Clause.LARGEST_SHARE, "32 of 32"):
            p.check_largest_share("b", announcement(of), of, parameters(3, 3), SitePolicy())

    def test_a_site_without_weight(self) -> None:
        of = weight_list(EVEN)
        with refused(p.Clause.LARGEST_SHARE, "'f' has no weight"):
            p.check_largest_share("f", announcement(of), of, parameters(), SitePolicy())

    def test_the_share_is_taken_as_written(self) -> None:
        assert SitePolicy().largest_share_exact == Fraction(3, 5)
        assert SitePolicy(largest_share=1e-5).largest_share_exact == Fraction(1, 100_000)
        check(weight_list({"b": 31, "c": 10, "d": 10, "e": 32}), policy=SitePolicy(largest_share=0.61))


class TestNeverRises:
    def seen(self, weights: dict[str, int]) -> SiteMemory:
        of = weight_list(weights)
        return p.remember_skip(p.remember_contribution(SiteMemory(), announcement(of), of), 1)

    def test_equal_or_lower_passes_and_higher_does_not(self) -> None:
        memory = self.seen({"b": 20, "c": 20, "d": 20, "e": 20})
        check(weight_list({"b": 20, "c": 19, "d": 20, "e": 20}, 2), memory=memory)
        with refused(p.Clause.NEVER_RISES, "'d' is listed with 21/32", "20"):
            check(weight_list({"b": 20, "c": 19, "d": 21, "e": 20}, 2), memory=memory)

    def test_only_for_rules_that_declare_it(self) -> None:
        check(weight_list(EVEN, 2), memory=self.seen({"b": 20, "c": 20, "d": 20, "e": 20}), never_rises=False)

    def test_a_late_joiner_has_no_last_weight(self) -> None:
        check(weight_list(EVEN | {"f": 32}, 2), memory=self.seen(EVEN))

    def test_a_site_that_was_not_listed_for_a_while_is_remembered(self) -> None:
        memory = self.seen({"b": 32, "c": 32, "d": 32, "e": 10})
        middle = weight_list({"b": 32, "c": 32, "d": 32}, 2)
        memory = p.remember_skip(p.remember_contribution(memory, announcement(middle), middle), 2)
        with refused(p.Clause.NEVER_RISES, "'e'"):
            check(weight_list(EVEN, 3), memory=memory)


def test_the_model_never_goes_back() -> None:
    of = weight_list(EVEN)
    memory = p.remember_contribution(SiteMemory(), announcement(of, version=5), of)
    check(of, announcement(of, version=5), memory=memory)
    check(of, announcement(of, version=6), memory=memory)
    with refused(p.Clause.MODEL_VERSION, "model 4", "model 5"):
        check(of, announcement(of, version=4), memory=memory)


class TestSameSumAgain:
    def memory(self, released: tuple[str, ...]) -> SiteMemory:
        of = weight_list(EVEN)
        return p.remember_release(SiteMemory(), announcement(of), of, released)

    def test_exactly_the_same_passes(self) -> None:
        again = weight_list({"b": 32, "c": 32, "d": 32}, 2)
        check(again, announcement(again), memory=self.memory(("b", "c", "d")))

    @pytest.mark.parametrize(
        "weights", [{"b": 32, "c": 32, "e": 32}, {"b": 32, "c": 32, "d": 31}, {"b": 32, "c": 32, "d": 32, "e": 32}]
    )
    def test_other_sites_or_weights_do_not(self, weights: dict[str, int]) -> None:
        again = weight_list(weights, 2)
        with refused(p.Clause.SAME_SUM_AGAIN, "model 0", "b: 32, c: 32, d: 32"):
            check(again, announcement(again), memory=self.memory(("b", "c", "d")))

    def test_against_the_next_model_everything_is_open_again(self) -> None:
        again = weight_list({"b": 32, "c": 32, "e": 30}, 2)
        check(again, announcement(again, version=1), memory=self.memory(("b", "c", "d")))


class TestOpens:
    @pytest.mark.parametrize("needs", list(Needs))
    def test_a_round_opens_what_the_rule_needs_or_nothing(self, needs: Needs) -> None:
        of = weight_list(EVEN)
        for opens in Needs:
            told = announcement(of, opens=opens)
            if opens in (needs, Needs.NOTHING):
                check(of, told, needs=needs)
            else:
                with refused(p.Clause.MEASURED_FOR_NOTHING, f"round 1 opens {opens.value}", f"needs {needs.value}"):
                    check(of, told, needs=needs)

    def test_the_site_says_what_may_be_opened_about_it(self) -> None:
        of, only_norms = weight_list(EVEN), SitePolicy(may_open=(Needs.NORMS,))
        check(of, announcement(of, opens=Needs.NORMS), needs=Needs.NORMS, policy=only_norms)
        with refused(p.Clause.MAY_OPEN, "opens pairs", "allowed: norms"):
            check(of, announcement(of, opens=Needs.PAIRS), needs=Needs.PAIRS, policy=only_norms)
        nothing = SitePolicy(may_open=())
        p.check_needs_allowed(Needs.NOTHING, nothing)
        with refused(p.Clause.MAY_OPEN, "allowed: nothing"):
            p.check_needs_allowed(Needs.DISTANCES, nothing)


class TestMeasuredTwice:
    def memory(self, *rounds: int, opens: Needs = Needs.DISTANCES) -> SiteMemory:
        memory = SiteMemory()
        for r in rounds:
            of = weight_list(EVEN, r)
            memory = p.remember_skip(p.remember_contribution(memory, announcement(of, opens=opens), of), r)
        return memory

    def test_two_rounds_and_no_third(self) -> None:
        third = weight_list(EVEN, 3)
        check(third, memory=self.memory(1))
        with refused(p.Clause.MEASURED_TWICE, "2 rounds", "model 0"):
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
        memory = p.remember_contribution(self.memory(1, 2), announcement(of, version=1), of)
        assert memory.measured_rounds == (3,)
        assert memory.released is None


class TestLeftOutTwice:
    def test_once_is_forgiven_twice_is_not(self) -> None:
        agreed, released = ("b", "c", "d", "e"), ("b", "c", "d")
        memory = p.remember_left_out(SiteMemory(), 1, agreed, released, (), own="b")
        memory = p.remember_left_out(memory, 1, agreed, released, (), own="b")
        check(weight_list(EVEN, 2), memory=memory)
        memory = p.remember_left_out(memory, 7, agreed, released, (), own="b")
        with refused(p.Clause.LEFT_OUT_TWICE, "'e'", r"\[1, 7\]"):
            check(weight_list(EVEN, 8), memory=memory)
        check(weight_list({"b": 32, "c": 32, "d": 32}, 8), memory=memory)

    def test_a_failed_check_is_no_leaving_out(self) -> None:
        memory = SiteMemory()
        for r in (1, 2, 3):
            memory = p.remember_left_out(memory, r, ("b", "c", "d", "e"), ("b", "c", "d"), ("e",), own="b")
        assert memory == SiteMemory()

    def test_a_site_knows_better_than_a_failed_check_of_its_own(self) -> None:
        memory = SiteMemory()
        for r in (1, 2):
            memory = p.remember_left_out(memory, r, ("b", "c", "d", "e"), ("c", "d"), ("b", "e"), own="b")
        assert memory.left_out == (p.LeftOut(site="b", rounds=(1, 2)),)
        with refused(p.Clause.LEFT_OUT_TWICE, "'b'"):
            check(weight_list(EVEN, 3), memory=memory)

    def test_a_rule_that_selects_leaves_sites_out_as_often_as_it_likes(self) -> None:
        memory = SiteMemory()
        for r in (1, 2, 3):
            memory = p.remember_left_out(memory, r, ("b", "c", "d", "e"), ("b", "c", "d"), (), own="b")
        check(weight_list(EVEN, 4), memory=memory, rule_selects=True)
        with refused(p.Clause.LEFT_OUT_TWICE, "'e'"):
            check(weight_list(EVEN, 4), memory=memory)


class TestOwnWeight:
    """Every other weight counts as the smallest possible one, 1/grid, whatever the list says."""

    OF = weight_list({"b": 4, "c": 4, "d": 4, "e": 4}, grid=4)

    def test_exactly_the_largest_share_passes_and_more_does_not(self) -> None:
        # w against w + 2 * 1/4: at most 60 % as long as w <= 3/4
        check(self.OF, m=3, grid=4, own_weight=0.75)
        with refused(p.Clause.LARGEST_SHARE, r"weight 3.04 of 5.04", "60.3 %", "weight_grid is at most 3 admits"):
            check(self.OF, m=3, grid=4, own_weight=0.76)
        check(self.OF, m=4, grid=4, own_weight=1.0)

    def test_colluders_take_the_smallest_weight_away_each(self) -> None:
        tolerant = SitePolicy(least_contributors=2)
        check(self.OF, m=4, t=1, grid=4, own_weight=0.75, policy=tolerant)
        with refused(p.Clause.LARGEST_SHARE, "weight 3 of 4"):
            check(self.OF, m=4, t=2, grid=4, own_weight=0.75, policy=tolerant)

    @pytest.mark.parametrize("m", [3, 4, 7])
    def test_the_advised_grid_admits_every_weight_and_the_next_finer_one_does_not(self, m: int) -> None:
        finest = 3 * (m - 1) // 2  # share / (1 - share) = 3/2
        for grid in (finest, finest + 1):
            of = weight_list(dict.fromkeys((*ROSTER, "g", "h"), grid), grid=grid)
            if grid == finest:
                check(of, m=m, grid=grid, own_weight=1.0, contributors=(*ROSTER, "g", "h"))
            else:
                with refused(p.Clause.LARGEST_SHARE, f"weight_grid is at most {finest} admits every weight"):
                    check(of, m=m, grid=grid, own_weight=1.0, contributors=(*ROSTER, "g", "h"))

    def test_where_no_grid_helps_more_sites_must_take_part(self) -> None:
        alone = SitePolicy(least_contributors=1)
        with refused(p.Clause.LARGEST_SHARE, "more sites must be sure"):
            check(self.OF, m=1, grid=4, own_weight=0.25, policy=alone)

    @pytest.mark.parametrize("own_weight", [0.0, 0.2, 1.01, float("nan"), float("inf")])
    def test_a_weight_that_no_rule_gives_is_a_bug(self, own_weight: float) -> None:
        with pytest.raises(ProtocolViolation, match=r"own weight lies in \[1/4, 1\]"):
            check(self.OF, m=4, grid=4, own_weight=own_weight)

    def test_the_smallest_weight_is_one_for_every_grid(self) -> None:
        for grid in (3, 7, 49, 107, 2**14):  # in floats 1/49 * 49 is below 1
            of = weight_list(dict.fromkeys(EVEN, grid), grid=grid)
            check(of, grid=grid, own_weight=1 / grid)

    def test_the_list_must_say_nothing(self) -> None:
        of = weight_list({"b": 4, "c": 4, "d": 3, "e": 4}, grid=4)
        with refused(p.Clause.GRID, "'d' has weight 3/4", "1 for all"):
            check(of, m=3, grid=4, own_weight=0.5)


class TestCountedOnce:
    OF = weight_list(EVEN)
    COUNTS = announcement(OF, opens=Needs.NOTHING, purpose=Purpose.COUNTS)

    def again(self, version: int = 0) -> tuple[WeightList, Announcement]:
        of = weight_list(EVEN, 2)
        return of, announcement(of, opens=Needs.NOTHING, purpose=Purpose.COUNTS, version=version)

    def test_counts_are_summed_before_the_updates_and_bind_no_later_sum(self) -> None:
        check(self.OF, self.COUNTS, needs=Needs.NOTHING)
        memory = p.remember_contribution(SiteMemory(), self.COUNTS, self.OF)
        memory = p.remember_release(memory, self.COUNTS, self.OF, tuple(EVEN))
        assert (memory.counted, memory.released, memory.unsettled) == (1, None, None)
        fewer = weight_list({"b": 32, "c": 32, "d": 32}, 2)
        check(fewer, announcement(fewer), memory=memory)

    def test_a_second_time_is_refused_whatever_the_model(self) -> None:
        memory = p.remember_contribution(SiteMemory(), self.COUNTS, self.OF)
        memory = p.remember_release(memory, self.COUNTS, self.OF, tuple(EVEN))
        for version in (0, 1):
            with refused(p.Clause.COUNTED_ONCE, "round 2", "round 1"):
                check(*self.again(version), memory=memory)

    def test_a_site_that_was_away_counts_a_release_it_was_shown(self) -> None:
        memory = p.remember_release(SiteMemory(model_version=3), self.COUNTS, self.OF, tuple(EVEN))
        assert (memory.counted, memory.model_version) == (1, 3)
        with refused(p.Clause.COUNTED_ONCE):
            check(*self.again(3), memory=memory)

    def test_a_newer_model_does_not_make_a_site_forget_an_unsettled_count(self) -> None:
        memory = p.remember_contribution(SiteMemory(), self.COUNTS, self.OF)
        newer = weight_list(EVEN, 5)
        memory = p.remember_release(memory, announcement(newer, version=1), newer, ("c", "d", "e"))
        assert memory.unsettled is None
        with refused(p.Clause.COUNTED_ONCE, "not seen both servers skip it"):
            check(*self.again(2), memory=memory)

    def test_a_skipped_count_is_tried_again(self) -> None:
        memory = p.remember_contribution(SiteMemory(), self.COUNTS, self.OF)
        check(self.OF, self.COUNTS, memory=memory)
        check(*self.again(), memory=p.remember_skip(memory, 1))
        assert p.remember_skip(memory, 7).counted == 1

    def test_an_update_round_leaves_the_count_as_it_was(self) -> None:
        memory = p.remember_contribution(
            SiteMemory(counted=1), announcement(weight_list(EVEN, 2)), weight_list(EVEN, 2)
        )
        assert memory.counted == 1

    def test_the_list_of_a_count_says_one_for_all(self) -> None:
        of = weight_list(EVEN | {"d": 31})
        told = announcement(of, opens=Needs.NOTHING, purpose=Purpose.COUNTS)
        with refused(p.Clause.GRID, "'d'"):
            check(of, told)


class TestOutcomeUnknown:
    """After round 1 of {b, c, d, e} on model 0, the requester announces round 2 without e on the same model."""

    OF = weight_list(EVEN)
    ACCEPTED = p.remember_contribution(SiteMemory(), announcement(OF), OF)
    NEXT = weight_list({"b": 32, "c": 32, "d": 32}, 2)

    def test_without_its_end_nothing_more_on_the_same_model(self) -> None:
        assert (self.ACCEPTED.unsettled, self.ACCEPTED.last_accepted) == (1, 1)
        with pytest.raises(p.OutcomeUnknown, match=r"^outcome_unknown: round 1 used model 0.*skip signed by both"):
            check(self.NEXT, memory=self.ACCEPTED)

    def test_the_round_itself_may_be_looked_at_again(self) -> None:
        check(self.OF, memory=self.ACCEPTED)

    def test_a_skip_of_that_round_settles_it_and_of_another_does_not(self) -> None:
        settled = p.remember_skip(self.ACCEPTED, 1)
        assert (settled.unsettled, settled.last_accepted) == (None, 1)
        check(self.NEXT, memory=settled)
        assert p.remember_skip(self.ACCEPTED, 2) == self.ACCEPTED
        assert p.remember_skip(settled, 1) == settled

    def test_its_release_settles_it_and_then_counts(self) -> None:
        settled = p.remember_release(self.ACCEPTED, announcement(self.OF), self.OF, tuple(EVEN))
        assert settled.unsettled is None
        with refused(p.Clause.LEAST_NUMBER):
            check(self.NEXT, memory=settled)
        with refused(p.Clause.SAME_SUM_AGAIN):
            p.check_same_sum_again(announcement(self.NEXT), self.NEXT, settled)

    def test_another_rounds_release_against_the_same_model_does_not_settle_it(self) -> None:
        memory = p.remember_release(self.ACCEPTED, announcement(self.NEXT), self.NEXT, ("b", "c", "d"))
        assert memory.unsettled == 1
        with pytest.raises(p.OutcomeUnknown):
            p.check_outcome_known(announcement(weight_list(EVEN, 3)), memory)

    def test_a_newer_model_asks_for_nothing_of_the_older_one(self) -> None:
        check(self.NEXT, announcement(self.NEXT, version=1), memory=self.ACCEPTED)
        newer = p.remember_release(self.ACCEPTED, announcement(self.NEXT, version=1), self.NEXT, ("b", "c", "d"))
        assert newer.unsettled is None

    def test_a_site_that_declined_has_nothing_to_settle(self) -> None:
        check(self.NEXT, memory=SiteMemory(model_version=0))


def test_a_release_against_an_older_model_changes_nothing() -> None:
    of, old = weight_list(EVEN, 5), weight_list(EVEN, 2)
    memory = p.remember_release(SiteMemory(), announcement(of, version=5), of, tuple(EVEN))
    assert p.remember_release(memory, announcement(old, version=4), old, ("b", "c", "d")) == memory
    again = p.remember_release(memory, announcement(of, version=5), of, ("b", "c", "d"))
    assert again.released is not None
    assert len(again.released.weights) == 3


def test_the_memory_survives_storage() -> None:
    of = weight_list(EVEN)
    memory = p.remember_contribution(SiteMemory(), announcement(of), of)
    memory = p.remember_release(memory, announcement(of), of, ("b", "c", "d"))
    memory = p.remember_left_out(memory, 1, ("b", "c", "d", "e"), ("b", "c", "d"), (), own="b")
    after = weight_list(EVEN, 2)
    memory = p.remember_contribution(memory, announcement(after), after)
    assert (memory.unsettled, memory.last_accepted) == (2, 2)
    assert SiteMemory.model_validate_json(memory.model_dump_json()) == memory
