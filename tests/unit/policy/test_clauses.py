"""Every clause that a weight list keeps or breaks by itself (docs/protocol.md 9)."""

from __future__ import annotations

from fractions import Fraction

import pytest

from protocol.errors import Clause, ProtocolViolation
from protocol.messages.control import (
    ListedWeight,
    PrivacySpec,
    Purpose,
    RankingSpec,
    RuleName,
    RuleSpec,
    StudyProtection,
    TrainingSpec,
)
from protocol.parameters import Needs
from protocol.policy.clauses import (
    MOST_DISCARDED_SUMS,
    Terms,
    check_altered_sums,
    check_discarded_sums,
    check_first_model,
    check_for_every_site,
    check_grid,
    check_largest_share,
    check_measured_twice,
    foresee,
)
from protocol.policy.memory import SiteMemory, remember_release
from protocol.policy.site_policy import (
    SitePolicy,
    check_needs_allowed,
    check_penalty_allowed,
    check_protection_allowed,
    check_study_allowed,
)
from protocol.rules.registry import rule_for
from tests.kit.present import present
from tests.unit.parties import study
from tests.unit.policy.lists import EVEN, ROSTER, Declared, announcement, check, parameters, refused, weight_list

TERMS = Terms(parameters(), ROSTER, Declared(), SitePolicy())


def test_an_ordinary_list_passes_for_every_site() -> None:
    of = weight_list(EVEN)
    for site in EVEN:
        check(of, site=site)
    check_for_every_site(announcement(of), of, TERMS, SiteMemory())


def test_the_requester_finds_the_one_site_that_would_refuse() -> None:
    of = weight_list({"b": 5, "c": 5, "d": 5, "e": 31})
    check(of, site="b")
    with refused(Clause.LARGEST_SHARE, "'e'"):
        check_for_every_site(announcement(of), of, TERMS, SiteMemory())


class TestSameRound:
    def test_other_study(self) -> None:
        of = weight_list(EVEN, study="ff" * 32)
        with refused(Clause.SAME_ROUND, "another study"):
            check(of, announcement(of))

    def test_other_round(self) -> None:
        of = weight_list(EVEN, round_number=4)
        with refused(Clause.SAME_ROUND, "round 4", "round 5"):
            check(of, announcement(of, round=5))

    def test_other_digest(self) -> None:
        with refused(Clause.SAME_ROUND, "digest"):
            check(weight_list(EVEN), announcement(weight_list(EVEN | {"e": 31})))


class TestAnnouncedSites:
    @pytest.mark.parametrize(
        "listed", [("b", "c", "d"), ("b", "c", "d", "e", "f"), ("b", "c", "d", "f"), ("c", "b", "d", "e")]
    )
    def test_list_and_announcement_differ(self, listed: tuple[str, ...]) -> None:
        of = weight_list(EVEN)
        with refused(Clause.ANNOUNCED_SITES):
            check(of, announcement(of, listed=listed))

    def test_this_site_is_not_listed(self) -> None:
        with refused(Clause.ANNOUNCED_SITES, "'f' is not listed"):
            check(weight_list(EVEN), site="f")

    def test_a_site_listed_twice(self) -> None:
        twice = tuple(ListedWeight(site=site, numerator=9) for site in "bcdb")
        of = weight_list(EVEN).model_copy(update={"weights": twice})
        with refused(Clause.ANNOUNCED_SITES):
            check(of, announcement(of, listed=("b", "c", "d")))


def test_the_requester_cannot_list_itself_as_a_contributor() -> None:
    with refused(Clause.CONTRIBUTORS_ONLY, "'requester'"):
        check(weight_list({"b": 32, "c": 32, "requester": 32}))


class TestGrid:
    def test_other_grid_than_the_studys(self) -> None:
        with refused(Clause.GRID, "1/64", "1/32"):
            check(weight_list(EVEN, grid=64))

    @pytest.mark.parametrize("numerator", [0, 33])
    def test_weight_outside_the_grid(self, numerator: int) -> None:
        with refused(Clause.GRID, f"'d' has weight {numerator}/32", "1/32 to 32/32"):
            check(weight_list(EVEN | {"d": numerator}))

    @pytest.mark.parametrize(("chosen", "own", "allowed"), [(False, 31, "which the list"), (True, 33, "0 to 32/32")])
    def test_the_requesters_own_weight(self, chosen: bool, own: int, allowed: str) -> None:
        given = weight_list(EVEN).model_copy(update={"requester": own})
        with refused(Clause.GRID, f"own weight is {own}/32", allowed):
            check_grid(given, parameters(), weighs_requester=chosen)

    def test_both_ends_are_allowed(self) -> None:
        check(weight_list({"b": 1, "c": 32, "d": 32, "e": 1}))


class TestLeastNumber:
    def test_another_than_the_studys(self) -> None:
        of = weight_list(EVEN)
        with refused(Clause.LEAST_NUMBER, "2", "3 or 4 are due"):
            check(of, announcement(of, m=2))

    def test_all_that_are_listed(self) -> None:
        of = weight_list(EVEN)
        check(of, announcement(of, m=4))

    def test_after_a_release_it_is_the_number_released(self) -> None:
        of = weight_list(EVEN)
        memory = remember_release(SiteMemory(), announcement(of), of, tuple(EVEN))
        again = weight_list(EVEN, round_number=2)
        check(again, announcement(again, m=4), memory=memory)
        with refused(Clause.LEAST_NUMBER, "3", "4 are due"):
            check(again, announcement(again, m=3), memory=memory)


class TestEnoughContributors:
    def test_two_are_not_enough_unless_the_site_says_so(self) -> None:
        of = weight_list(EVEN)
        with refused(Clause.ENOUGH_CONTRIBUTORS, "leave 2", "at least 3"):
            check(of, m=2)
        check(of, m=2, policy=SitePolicy(least_contributors=2))

    def test_colluders_do_not_count_whoever_assumes_them(self) -> None:
        of = weight_list(EVEN)
        check(of, m=4, t=1)
        with refused(Clause.ENOUGH_CONTRIBUTORS, "4 contributors less 2", "leave 2"):
            check(of, m=4, t=1, policy=SitePolicy(assumed_colluders=2))
        with refused(Clause.ENOUGH_CONTRIBUTORS, "leave 2"):
            check(of, m=4, t=2)


class TestLargestShare:
    def test_exactly_sixty_percent_passes_and_one_step_more_does_not(self) -> None:
        # b: 30 of 30 + 10 + 10 = 60 %; e is heavier and not counted
        check(weight_list({"b": 30, "c": 10, "d": 10, "e": 32}))
        with refused(Clause.LARGEST_SHARE, "31 of 51", "60.8 %", "0.6"):
            check(weight_list({"b": 31, "c": 10, "d": 10, "e": 32}))

    def test_assumed_colluders_take_their_weight_away(self) -> None:
        of = weight_list({"b": 24, "c": 10, "d": 10, "e": 10, "f": 10})
        check(of, m=4)
        with refused(Clause.LARGEST_SHARE, "24 of 34"):
            check(of, m=4, t=2, policy=SitePolicy(least_contributors=2))

    def test_all_contributors_collude(self) -> None:
        of = weight_list(EVEN)
        with refused(Clause.LARGEST_SHARE, "32 of 32"):
            check_largest_share("b", announcement(of), of, parameters(3, 3), SitePolicy())

    def test_a_site_without_weight(self) -> None:
        of = weight_list(EVEN)
        with refused(Clause.LARGEST_SHARE, "'f' has no weight"):
            check_largest_share("f", announcement(of), of, parameters(), SitePolicy())

    def test_the_share_is_taken_as_written(self) -> None:
        assert SitePolicy().largest_share_exact == Fraction(3, 5)
        assert SitePolicy(largest_share=1e-5).largest_share_exact == Fraction(1, 100_000)
        check(weight_list({"b": 31, "c": 10, "d": 10, "e": 32}), policy=SitePolicy(largest_share=0.61))


class TestOpens:
    @pytest.mark.parametrize("needs", list(Needs))
    def test_a_round_opens_what_the_rule_needs_or_nothing(self, needs: Needs) -> None:
        of, willing = weight_list(EVEN), SitePolicy(may_open=tuple(one for one in Needs if one is not Needs.NOTHING))
        for opens in Needs:
            told = announcement(of, opens=opens)
            if opens in (needs, Needs.NOTHING):
                check(of, told, needs=needs, policy=willing)
            else:
                with refused(Clause.MEASURED_FOR_NOTHING, f"round 1 opens {opens.value}", f"needs {needs.value}"):
                    check(of, told, needs=needs, policy=willing)

    def test_the_site_says_what_may_be_opened_about_it(self) -> None:
        of, only_norms = weight_list(EVEN), SitePolicy(may_open=(Needs.NORMS,))
        check(of, announcement(of, opens=Needs.NORMS), needs=Needs.NORMS, policy=only_norms)
        with refused(Clause.MAY_OPEN, "opens pairs", "allowed: norms"):
            check(of, announcement(of, opens=Needs.PAIRS), needs=Needs.PAIRS, policy=only_norms)
        nothing = SitePolicy(may_open=())
        check_needs_allowed(Needs.NOTHING, nothing)
        with refused(Clause.MAY_OPEN, "allowed: nothing"):
            check_needs_allowed(Needs.DISTANCES, nothing)


class TestProtection:
    def test_ckks_only_where_the_site_says_so(self) -> None:
        check_protection_allowed(StudyProtection.SHARES, SitePolicy())
        check_protection_allowed(StudyProtection.CKKS, SitePolicy(allow_ckks=True))
        with refused(Clause.ALLOW_CKKS, "server A together with any one site", "set allow_ckks = true"):
            check_protection_allowed(StudyProtection.CKKS, SitePolicy())


class TestFirstModel:
    PRETRAINED = study("ab" * 32).model_copy(update={"pretrained_digest": "cd" * 32})

    def test_a_pretrained_one_only_where_the_site_says_so(self) -> None:
        check_study_allowed(self.PRETRAINED, SitePolicy(may_pretrain=True))
        with refused(Clause.MAY_PRETRAIN, "makes single records readable", "set may_pretrain = true"):
            check_study_allowed(self.PRETRAINED, SitePolicy())

    def test_it_is_the_derived_one(self) -> None:
        check_first_model("ab" * 32, "ab" * 32)
        with refused(Clause.FIRST_MODEL, "abab", "this site derives cdcd", "nothing is trained on it"):
            check_first_model("ab" * 32, "cd" * 32)
        with refused(Clause.FIRST_MODEL, "the study pins cdcd"):
            check_first_model("ab" * 32, "cd" * 32, "the study pins")


class TestNoise:
    PLAIN = study("ab" * 32)
    NOISED = PLAIN.model_copy(update={"privacy": PrivacySpec(record_clip=1.0, noise_multiplier=1.5)})

    def test_a_site_without_demands_takes_both(self) -> None:
        check_study_allowed(self.PLAIN, SitePolicy())
        check_study_allowed(self.NOISED, SitePolicy())

    def test_with_a_budget_or_a_floor_there_must_be_noise(self) -> None:
        for demands in (SitePolicy(epsilon=2.0), SitePolicy(least_noise=0.5)):
            check_study_allowed(self.NOISED, demands)
            with refused(Clause.NOISE, "updates have no noise", "with a .privacy. table"):
                check_study_allowed(self.PLAIN, demands)

    def test_less_noise_than_the_floor_is_refused(self) -> None:
        check_study_allowed(self.NOISED, SitePolicy(least_noise=1.5))
        with refused(Clause.NOISE, "noise multiplier of 1.5", "at least 1.6"):
            check_study_allowed(self.NOISED, SitePolicy(least_noise=1.6))

    def test_a_study_with_noise_of_the_servers_is_refused_whatever_the_policy(self) -> None:
        old = self.PLAIN.model_copy(update={"privacy": PrivacySpec(unit="site", noise_multiplier=1.5)})
        for policy in (SitePolicy(), SitePolicy(epsilon=2.0)):
            with refused(Clause.NOISE, "no longer exists: take unit = 'record'"):
                check_study_allowed(old, policy)


class TestSteps:
    """The most that a round, and a study, may move the model: 0.5 * 4 and 100 times that."""

    PLAIN = study("ab" * 32).model_copy(
        update={
            "training": TrainingSpec(server_learning_rate=0.5),
            "rounds": 100,
            "rule": RuleSpec(name=RuleName.FEDAVG),
        }
    )

    def test_exactly_the_largest_passes(self) -> None:
        longest = 0.5 * self.PLAIN.parameters.clip_norm
        check_study_allowed(self.PLAIN, SitePolicy(largest_step=longest, largest_path=100 * longest))
        with refused(Clause.LARGEST_STEP, f"by {longest:g} in a round", "allowed is"):
            check_study_allowed(self.PLAIN, SitePolicy(largest_step=longest * 0.99))
        with refused(Clause.LARGEST_PATH, f"by {100 * longest:g} in its 100 rounds", "allowed is"):
            check_study_allowed(self.PLAIN, SitePolicy(largest_path=99.9 * longest))

    def test_an_enormous_clip_norm_is_refused_by_default(self) -> None:
        huge = self.PLAIN.parameters.model_copy(update={"clip_norm": 2.0**100})
        with refused(Clause.LARGEST_STEP, "allowed is 64"):
            check_study_allowed(self.PLAIN.model_copy(update={"parameters": huge}), SitePolicy())


def test_one_measurement_without_a_sum_per_model() -> None:
    again = announcement(weight_list(EVEN, round_number=2), opens=Needs.PAIRS, purpose=Purpose.MEASURE)
    check_measured_twice(again, SiteMemory(apart=2))
    with refused(Clause.MEASURED_TWICE, "round 1 measured model 0 already"):
        check_measured_twice(again, SiteMemory(apart=1))


class TestOwnWeight:
    """Every other weight counts as the smallest possible one, 1/grid, whatever the list says."""

    OF = weight_list({"b": 4, "c": 4, "d": 4, "e": 4}, grid=4)

    def test_exactly_the_largest_share_passes_and_more_does_not(self) -> None:
        # w against w + 2 * 1/4: at most 60 % as long as w <= 3/4
        check(self.OF, m=3, grid=4, own_weight=0.75)
        with refused(Clause.LARGEST_SHARE, r"weight 3.04 of 5.04", "60.3 %", "weight_grid is at most 3 admits"):
            check(self.OF, m=3, grid=4, own_weight=0.76)
        check(self.OF, m=4, grid=4, own_weight=1.0)

    def test_colluders_take_the_smallest_weight_away_each(self) -> None:
        tolerant = SitePolicy(least_contributors=2)
        check(self.OF, m=4, t=1, grid=4, own_weight=0.75, policy=tolerant)
        with refused(Clause.LARGEST_SHARE, "weight 3 of 4"):
            check(self.OF, m=4, t=2, grid=4, own_weight=0.75, policy=tolerant)

    @pytest.mark.parametrize("m", [3, 4, 7])
    def test_the_advised_grid_admits_every_weight_and_the_next_finer_one_does_not(self, m: int) -> None:
        finest = 3 * (m - 1) // 2  # share / (1 - share) = 3/2
        for grid in (finest, finest + 1):
            of = weight_list(dict.fromkeys((*ROSTER, "g", "h"), grid), grid=grid)
            if grid == finest:
                check(of, m=m, grid=grid, own_weight=1.0, contributors=(*ROSTER, "g", "h"))
            else:
                with refused(Clause.LARGEST_SHARE, f"weight_grid is at most {finest} admits every weight"):
                    check(of, m=m, grid=grid, own_weight=1.0, contributors=(*ROSTER, "g", "h"))

    def test_where_no_grid_helps_more_sites_must_take_part(self) -> None:
        alone = SitePolicy(least_contributors=1)
        with refused(Clause.LARGEST_SHARE, "more sites must be sure"):
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
        with refused(Clause.GRID, "'d' has weight 3/4", "1 for all"):
            check(of, m=3, grid=4, own_weight=0.5)


class TestRankingAllowed:
    """A ranking opens an inner product, and needs the site's leave besides, whatever the study's rule needs."""

    OF = weight_list(EVEN)
    TOLD = announcement(OF, opens=Needs.INNER_PRODUCTS, purpose=Purpose.RANKING)

    @pytest.mark.parametrize("needs", [Needs.NOTHING, Needs.DISTANCES, Needs.INNER_PRODUCTS])
    def test_only_where_the_site_says_so(self, needs: Needs) -> None:
        check(self.OF, self.TOLD, needs=needs, policy=SitePolicy(may_rank=True))
        with refused(Clause.MAY_RANK, "one number of its choice", "set may_rank = true"):
            check(self.OF, self.TOLD, needs=needs)

    def test_a_site_may_forbid_it_with_all_inner_products(self) -> None:
        with refused(Clause.MAY_OPEN, "ranking opens inner_products", "allowed: distances"):
            check(self.OF, self.TOLD, policy=SitePolicy(may_rank=True, may_open=(Needs.DISTANCES,)))

    def test_a_study_is_asked_about_its_ranking_only_if_it_has_one(self) -> None:
        plain = study("ab" * 32)
        check_study_allowed(plain, SitePolicy())
        ranking = plain.model_copy(update={"ranking": RankingSpec()})
        check_study_allowed(ranking, SitePolicy(may_rank=True))
        with refused(Clause.MAY_RANK, "set may_rank = true"):
            check_study_allowed(ranking, SitePolicy())

    def test_a_penalty_below_the_sites_own_is_refused(self) -> None:
        strict = SitePolicy(may_rank=True, least_ranking_penalty=0.1)
        check_penalty_allowed(RankingSpec(penalty=0.1), strict)
        with refused(Clause.RANKING_PENALTY, "penalty of 0.05", "at least 0.1 is demanded"):
            check_penalty_allowed(RankingSpec(penalty=0.05), strict)


class TestDiscardedSums:
    """Under CKKS three discarded sums end a study for the site; shares know no such thing."""

    OF = weight_list(EVEN)
    ENCRYPTED = announcement(OF, opens=Needs.NOTHING).model_copy(update={"ckks_key_id": "5c" * 16})

    def test_fewer_do_not(self) -> None:
        check_discarded_sums(self.ENCRYPTED, tuple(range(MOST_DISCARDED_SUMS - 1)))

    def test_the_last_one_does(self) -> None:
        with refused(Clause.DISCARDED_SUMS, "rounds .1, 4, 9.", "3 end the study"):
            check_discarded_sums(self.ENCRYPTED, (1, 4, 9))

    def test_rounds_of_shares_are_not_asked(self) -> None:
        check_discarded_sums(announcement(self.OF), (1, 4, 9))


def test_after_a_sum_with_wrong_tags_nothing_is_contributed() -> None:
    announced = announcement(weight_list(EVEN))
    check_altered_sums(announced, ())
    with refused(Clause.ALTERED_SUM, "the sum of round 4 had wrong tags", "moiety study verify"):
        check_altered_sums(announced, (4,))


# --- foreseen ---------------------------------------------------------------------------------------------------------

FORESEEN = study("ab" * 32)


def foreseen(
    policy: SitePolicy, contributors: int, name: RuleName = RuleName.FEDAVG, least: int = 3, colluders: int = 0
):
    names = tuple(f"c{number}" for number in range(1, contributors + 1))
    parameters = FORESEEN.parameters.model_copy(update={"least_contributors": least, "assumed_colluders": colluders})
    rule = rule_for(RuleSpec(name=name), batch_size=16, grid=parameters.weight_grid)
    return foresee(FORESEEN.model_copy(update={"parameters": parameters}), names, rule, policy)


@pytest.mark.parametrize("name", [RuleName.FEDAVG, RuleName.WEIGHT_EROSION])
def test_four_hospitals_of_which_one_colludes_cannot_federate(name: RuleName) -> None:
    """The requester and three others: three less one assumed to collude are fewer than three."""
    found = foreseen(SitePolicy(assumed_colluders=1), 3, name)
    assert found.refused is not None
    assert found.refused.clause is Clause.ENOUGH_CONTRIBUTORS
    assert "3 contributors less 1 assumed to collude leave 2, at least 3 are demanded" in found.refused.detail
    assert foreseen(SitePolicy(assumed_colluders=1), 4, name).refused is None


def test_a_share_that_equal_weights_exceed_cannot_federate() -> None:
    found = foreseen(SitePolicy(largest_share=0.3), 3)
    assert present(found.refused).clause is Clause.LARGEST_SHARE
    assert foreseen(SitePolicy(largest_share=0.3), 4).refused is None


def test_fewer_sites_than_the_study_needs() -> None:
    found = foreseen(SitePolicy(), 4, least=5)
    assert present(found.refused).detail == "enough_contributors: the study needs 5 contributors, 4 are there"


@pytest.mark.parametrize(("contributors", "spare"), [(3, 0), (4, 1), (7, 4)])
def test_how_many_may_be_missing(contributors: int, spare: int) -> None:
    assert foreseen(SitePolicy(), contributors).spare == spare


def test_the_studys_own_colluders_count_too() -> None:
    assert foreseen(SitePolicy(), 4, colluders=2).refused is not None
