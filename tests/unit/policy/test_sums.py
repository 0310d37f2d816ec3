"""The leakage of one more sum: over release sets, unsettled rounds, other studies and other dimensions."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from harness.attack.memory_attacks import FEATURES, FOUR, PARTS, REQUESTER, Claim, Federation, start
from harness.attack.reconstruction import Prior, reconstruction_errors
from protocol.errors import Clause, PolicyRefusal
from protocol.policy.clauses import check_isolation
from protocol.policy.exposure import (
    MOST_RELEASE_SETS,
    MOST_ROWS,
    KnownSum,
    SummedRow,
    SummedWeight,
    exposure,
    release_sets,
    release_sets_number,
)
from protocol.policy.site_policy import SitePolicy

# --- sums -------------------------------------------------------------------------------------------------------------

UPDATE = np.array([3.0, -1.0, 2.0, 0.5])
OTHER = np.array([0.5, 2.0, 1.0, -3.0])


def row(
    sites: str,
    number: int = 1,
    *,
    least: int | None = None,
    released: str | None = None,
    study: str = "one",
    **more: object,
) -> SummedRow:
    """A row over the sites named by one letter each, all weights 1; not settled unless said."""
    named = {
        "study_digest": study,
        "round": number,
        "dimension": len(UPDATE),
        "weights": tuple(SummedWeight(site=site, weight=1.0) for site in sites),
        "least": len(sites) if least is None else least,
        "released": None if released is None else tuple(released),
    }
    return SummedRow.model_validate(named | more)


def known(sites: str, number: int = 1, update: np.ndarray | None = UPDATE, **more: object) -> KnownSum:
    return KnownSum(row(sites, number, **more), update)  # type: ignore[arg-type]


def test_release_sets() -> None:
    assert release_sets("abc", 2) == (("a", "b", "c"), ("a", "b"), ("a", "c"), ("b", "c"))
    assert release_sets("abc", 4) == ((),), "nothing can be opened"
    assert [release_sets_number(10, least) for least in (3, 8, 10, 11)] == [968, 56, 1, 1]


def test_a_round_that_opens_nothing_hides_no_other() -> None:
    """A site that the sum needed has refused: what was opened before gives away as much as it did."""
    past = (known("abcd", 1, released="abcd"), known("acd", 2, least=4))
    assert exposure(past, row("bcd", 3), UPDATE).least < 1e-4
    assert exposure(past[1:], row("bcd", 3, least=4), UPDATE).least == 1.0


def test_a_first_sum_isolates_nobody() -> None:
    first = exposure((), row("abcd", 1, least=3), UPDATE)
    assert first.least == pytest.approx(np.sqrt(2 / 3), abs=1e-5)
    assert first.newest["a"] == pytest.approx(np.sqrt(2 / 3), abs=1e-5)
    assert set(first.newest) == set("abcd")


def test_the_same_list_again_needs_everybody_where_updates_do_not_move() -> None:
    past = [known("abcd", 1, released="abcd")]
    assert exposure(past, row("abcd", 2), UPDATE).least == pytest.approx(np.sqrt(3 / 4), abs=1e-5)
    short = exposure(past, row("abcd", 2, least=3), UPDATE)
    assert short.least < 1e-5
    moved = exposure(past, row("abcd", 2, least=3), OTHER)
    assert moved.least > 0.5


def test_who_is_left_out_is_looked_after() -> None:
    left_out = exposure([known("abcd", 1, released="abcd")], row("bcd", 2), UPDATE)
    assert (left_out.least, left_out.of) == (pytest.approx(0, abs=1e-5), "a")
    assert min(left_out.newest.values()) == pytest.approx(np.sqrt(2 / 3), abs=1e-5)
    assert "a" not in left_out.newest


def test_an_unsettled_round_counts_as_every_sum_that_it_admits() -> None:
    """It may have been {b, c, d}: then the next sum of all four would complete it."""
    assert exposure([known("abcd", 1, least=3)], row("abcd", 2), UPDATE).least < 1e-5
    assert exposure([known("abcd", 1, least=4)], row("abcd", 2), UPDATE).least > 0.8
    assert exposure([known("abcd", 1, least=3, released="abcd")], row("abcd", 2), UPDATE).least > 0.8


def test_many_unsettled_rounds_count_as_all_their_sums_at_once() -> None:
    rng = np.random.default_rng(1)
    updates = rng.normal(size=(6, 4))
    past = [known("abcd", number + 1, update, least=3) for number, update in enumerate(updates)]
    found = exposure(past, row("abcd", 9), UPDATE)
    assert found.least < 1e-4
    one_by_one = exposure(past[:2], row("abcd", 9), UPDATE)
    assert one_by_one.least > found.least


def test_more_than_can_be_looked_at_counts_as_exposed() -> None:
    crowd = "abcdefghij"
    assert exposure((), row(crowd, 1, least=3), UPDATE).least == 0
    assert exposure((), row(crowd, 1, least=4), UPDATE).least == 0
    assert exposure((), row(crowd, 1, least=6), UPDATE).least > 0.9
    past = [known(crowd, number, least=6) for number in (1, 2)]
    assert exposure(past, row(crowd, 3), UPDATE).least == 0
    assert exposure((), row("", 1), UPDATE).least == 0
    assert release_sets_number(10, 4) > MOST_RELEASE_SETS


def test_updates_of_another_length_are_compared_over_what_both_have() -> None:
    """One parameter more is another model, and nearly the same."""
    past = [known("abcd", 1, np.append(UPDATE, 0.1), released="abcd", dimension=5)]
    assert exposure(past, row("bcd", 2), UPDATE).least < 0.05
    longer = row("bcd", 2, dimension=5)
    assert exposure([known("abcd", 1, released="abcd")], longer, np.append(UPDATE, 0.1)).least < 0.05
    elsewhere = [known("abcd", 1, np.append(np.zeros(4), 2.0), released="abcd", dimension=5)]
    assert exposure(elsewhere, row("bcd", 2), UPDATE).least == pytest.approx(np.sqrt(2 / 3), abs=1e-5)


def test_other_names_for_the_same_layers_change_nothing() -> None:
    past = [known("abcd", 1, released="abcd", layers=(("weight", 3), ("bias", 1)))]
    assert exposure(past, row("bcd", 2, layers=(("0.weight", 3), ("0.bias", 1))), UPDATE).least < 1e-4
    more = row("bcd", 2, dimension=6, layers=(("weight", 4), ("bias", 1), ("scale", 1)))
    assert exposure(past, more, np.array([3.0, -1.0, 2.0, 0.1, 0.5, 0.1])).least < 0.1


def test_other_sites_own_weights_are_guessed_at_worst() -> None:
    """c2's own weight is 1 and the others' may be 1/2; they are 1 as well, as in the study before that listed them."""
    listed, own = row("abcd", 1, study="listed"), SummedWeight(site="b", weight=1.0)
    half = tuple(SummedWeight(site=site, weight=1.0 if site == "b" else 0.5) for site in "bcd")
    weighed = row("bcd", 1, study="weighed", own=own).model_copy(update={"weights": half})
    assert exposure([KnownSum(listed, UPDATE)], weighed, UPDATE).least < 1e-4
    unsaid = weighed.model_copy(update={"own": None})
    assert exposure([KnownSum(listed, UPDATE)], unsaid, UPDATE).least > 0.4, "by the smallest weights it would pass"
    lighter = weighed.model_copy(update={"own": SummedWeight(site="b", weight=0.75)})
    assert exposure([KnownSum(lighter, UPDATE)], listed, UPDATE).least < 1e-4


def test_other_studies_count() -> None:
    past = [known("abcd", 1, released="abcd", study="cancelled")]
    assert exposure(past, row("bcd", 1), UPDATE).least < 1e-5


def test_an_earlier_word_on_the_same_round_is_replaced() -> None:
    assert exposure([known("abcd", 1)], row("bcd", 1), UPDATE).least > 0.8


def test_sums_over_other_models_do_not_make_a_site_forget() -> None:
    """The nearest of too many sums count, however old; those far from the newest update go."""
    old = [known("abcd", 1, released="abcd", study="long ago")]
    rng = np.random.default_rng(3)
    far = rng.normal(size=(2 * MOST_ROWS, 4))
    far -= np.outer(far @ UPDATE, UPDATE) / (UPDATE @ UPDATE)
    far[0] = 0
    fresh = [known("efg", number, one, released="efg") for number, one in enumerate(far, 1)]
    assert exposure(old + fresh, row("bcd", 500), UPDATE).least < 1e-4
    assert exposure([known("abcd", 1, None, released="abcd"), *fresh], row("bcd", 500), UPDATE).least < 1e-4
    assert exposure(fresh + old, row("bcd", 500), UPDATE).least < 1e-4
    nearer = [known("efg", number, UPDATE, released="efg") for number in range(1, 2 * MOST_ROWS)]
    away = known("abcd", 1, OTHER, released="abcd", study="long ago")
    assert exposure([away, *nearer], row("bcd", 500), UPDATE).of not in ("a", "b", "c", "d")


def test_the_newest_update_stands_in_where_there_was_none() -> None:
    assert exposure([known("abcd", 1, None, released="abcd")], row("bcd", 2), UPDATE).least < 1e-5


def test_a_site_that_was_left_out_of_its_own_sum_still_knows_of_it() -> None:
    past = [known("abcd", 1, least=3, released="bcd")]
    assert exposure(past, row("abcd", 2), UPDATE).least < 1e-5


def test_colluders_count() -> None:
    alone = exposure((), row("abcd"), UPDATE).least
    assert exposure((), row("abcd"), UPDATE, colluders=1).least == pytest.approx(np.sqrt(2 / 3), abs=1e-5)
    assert alone == pytest.approx(np.sqrt(3 / 4), abs=1e-5)


def test_weights_count() -> None:
    heavy = row("abc").model_copy(
        update={"weights": tuple(SummedWeight(site=s, weight=w) for s, w in (("a", 1.0), ("b", 0.25), ("c", 0.25)))}
    )
    found = exposure((), heavy, UPDATE)
    assert found.of == "a"
    assert found.least == pytest.approx(np.sqrt(1 - 1 / (1 + 2 / 16)), abs=1e-5)


def test_noise_of_the_sum_counts() -> None:
    square = float(UPDATE @ UPDATE)
    assert exposure((), row("a", noise=square), UPDATE).least == pytest.approx(np.sqrt(0.5), abs=1e-5)


def test_the_clause_asks_for_the_policys_figure_and_tells_the_requester_no_figure() -> None:
    past, again = [known("abcd", 1, released="abcd")], row("bcd", 2)
    found = exposure(past, again, UPDATE)
    with pytest.raises(
        PolicyRefusal, match=r"relative error of 0\.000 .that of the site with key a.*demands 0\.3"
    ) as refused:
        check_isolation(found, again, SitePolicy())
    assert refused.value.clause is Clause.ISOLATION
    assert "0.000" not in refused.value.told
    assert "demands 0.3" in refused.value.told
    check_isolation(found, again, SitePolicy(least_isolation=0.0))
    first = row("abcd")
    check_isolation(exposure((), first, UPDATE), first, SitePolicy(least_isolation=0.86))
    with pytest.raises(PolicyRefusal, match=r"relative error of 0\.866"):
        check_isolation(exposure((), first, UPDATE), first, SitePolicy(least_isolation=0.87))


def test_too_many_release_sets_are_refused_with_what_to_do() -> None:
    many = row("abcdefghij", least=3)
    with pytest.raises(PolicyRefusal, match="968 release sets are possible, 500 can be looked at; announce the number"):
        check_isolation(exposure((), many, UPDATE), many, SitePolicy())


def test_a_row_is_what_it_says() -> None:
    sound = row("abc", 2, released="ab")
    assert SummedRow.model_validate_json(sound.model_dump_json()) == sound
    assert (sound.settled, row("abc").settled, row("abc", least=2).possible, sound.possible) == (True, False, 4, 1)
    with pytest.raises(ValidationError):
        SummedWeight(site="a", weight=0.0)


# --- welcome sums -----------------------------------------------------------------------------------------------------

LIMIT = SitePolicy().least_isolation
ONE_SUM = 0.4
"""The rest of an update that one sum leaves."""


def test_repeating_the_same_sum_is_never_refused() -> None:
    federation = Federation(LIMIT)
    for _ in range(5):
        assert federation.ask(FOUR, start()) is not None
    errors = reconstruction_errors(federation.opened, (REQUESTER,), Prior.TRUE)
    assert min(error for one in errors.values() for error in one if error is not None) > ONE_SUM


def test_another_cohort_is_welcome_where_updates_are_new() -> None:
    federation = Federation(LIMIT)
    assert federation.ask(PARTS[0], start(), told=PARTS[0]) is not None
    assert federation.ask(PARTS[2], np.linspace(-3, 3, FEATURES), Claim(study="second"), told=PARTS[2]) is not None
