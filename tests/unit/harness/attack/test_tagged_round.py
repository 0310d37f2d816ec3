"""A round with tags: honest it opens the average; whatever one party does otherwise is stopped, and by whom."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from harness.attack.scripted_agents import REQUESTER, ROSTER
from harness.attack.tagged_round import CONTRIBUTORS, TaggedRound, deviating, entry
from protocol.arithmetic.ring import Ring
from protocol.errors import AggregateOutOfBounds, BadSignature, SumAltered, Unavailable
from protocol.messages.control import ShareKind
from protocol.protection.shares import CheckedHalves
from protocol.release import masking_side, open_output_chunk
from protocol.sharing import Side
from protocol.tags import WrongTags

EVEN_AND_ODD = pytest.mark.parametrize("number", [1, 2])
EACH_SIDE = pytest.mark.parametrize("liar", list(Side))


@EVEN_AND_ODD
def test_an_honest_sum_goes_and_opens_the_average(number: int) -> None:
    turn = TaggedRound(number=number)
    assert turn.goes
    np.testing.assert_allclose(turn.opened(), turn.average, atol=1e-5)
    np.testing.assert_array_equal(turn.opened(), turn.opened(REQUESTER))


@pytest.mark.parametrize("site", [REQUESTER, CONTRIBUTORS[2]])
@pytest.mark.parametrize("place", [-4, -3, 0])
def test_a_wrong_tag_stops_the_sum_and_names_the_site(site: str, place: int) -> None:
    turn = deviating(shared=lambda turn, name, tagged: tagged + entry(tagged.size, place, int(name == site)))()
    assert not turn.goes
    assert turn.wrong() == WrongTags(sites=(site,), server_lied=False)


def changed(liar: Side, units: int) -> Callable[[TaggedRound, Side, Ring], Ring]:
    """One server changes an element of its sum."""
    return lambda turn, side, own: own + entry(own.size, 7, units * (side is liar))


@EACH_SIDE
@pytest.mark.parametrize("units", [1, 2**33, 2**40])
def test_a_changed_sum_does_not_go_and_names_no_site(liar: Side, units: int) -> None:
    turn = deviating(summed=changed(liar, units))()
    assert not turn.goes
    assert turn.wrong() == WrongTags(sites=(), server_lied=True)


@EVEN_AND_ODD
@EACH_SIDE
@pytest.mark.parametrize("units", [1000, 2**40])
def test_a_forged_check_is_found_by_every_site_and_names_the_server(liar: Side, number: int, units: int) -> None:
    """The server knows its own error once it has the seed, and takes it out of what it signs.

    It is named also where its error is beyond the bound of a coordinate.
    """

    def forged(turn: TaggedRound, side: Side, errors: Ring) -> Ring:
        return errors - turn.errors([entry(turn.length, 7, units * (side is liar))])[0]

    turn = deviating(summed=changed(liar, units), checked=forged)(number=number)
    assert turn.goes
    with pytest.raises(SumAltered, match=f"server {liar.value.upper()} signed") as found:
        turn.opened()
    assert found.value.sides == (liar.value,)


def half_altered(kind: ShareKind, alter: Callable[[bytes], bytes], number: int = 1) -> TaggedRound:
    """A round of which one half is served otherwise."""
    return deviating(served=lambda turn, half: alter(half.content) if half.kind is kind else half.content)(
        number=number
    )


@EVEN_AND_ODD
@pytest.mark.parametrize("kind", [ShareKind.SEED, ShareKind.VECTOR])
def test_another_half_than_the_signed_one_is_not_used_and_fetched_again(kind: ShareKind, number: int) -> None:
    turn = half_altered(kind, lambda content: content[:-1] + bytes([content[-1] ^ 1]), number)
    side = masking_side(number) if kind is ShareKind.SEED else masking_side(number).other
    with pytest.raises(Unavailable, match=f"server {side.value.upper()} serves another half"):
        turn.opened()


def test_a_coordinate_beyond_its_bound_in_a_wrong_half_is_the_servers_to_serve_again() -> None:
    """The digest is known last; until then nothing is said about the sum."""
    with pytest.raises(Unavailable, match="serves another half"):
        half_altered(ShareKind.VECTOR, lambda content: bytes(7) + b"@" + content[8:]).opened()


def test_a_sum_beyond_its_bound_whose_tags_fit_is_discarded_as_ever() -> None:
    turn = TaggedRound()
    turn.updates["c1"] = turn.updates["c1"] * 60
    assert turn.goes
    with pytest.raises(AggregateOutOfBounds, match="the round is discarded"):
        turn.opened()


def test_a_sum_without_go_is_not_opened() -> None:
    turn = TaggedRound()
    past = turn.past().model_copy(update={"go": None})
    turn.past = lambda: past  # type: ignore[method-assign]
    with pytest.raises(BadSignature, match="without the requester's go"):
        turn.opened()


def cut(turn: TaggedRound, *at: int) -> Iterator[tuple[int, Ring]]:
    """The masked vector in pieces that end at these places."""
    vector = turn.halves[masking_side(turn.number).other].vector(turn.length)
    return ((start, vector[start:stop]) for start, stop in itertools.pairwise((0, *at, turn.length)))


def checked(turn: TaggedRound, *, closely: bool) -> CheckedHalves:
    mask_seed = turn.halves[masking_side(turn.number)].content
    return CheckedHalves(turn.past(), ROSTER, mask_seed, turn.length, closely=closely)


@pytest.mark.parametrize("closely", [False, True])
@pytest.mark.parametrize("at", [(), (20, 40), (1, 59, 61), (60,)])
def test_the_sum_comes_without_mask_and_tags_in_whatever_pieces(at: tuple[int, ...], closely: bool) -> None:
    turn = TaggedRound()

    def copied(pieces: Iterator[tuple[int, Ring]]) -> list[Ring]:
        return [piece.copy() for _, piece in pieces]

    whole = np.concatenate(checked(turn, closely=closely).opened(cut(turn, *at), copied) or [])
    expected = np.add.reduce([x[side] for x in turn.shares.values() for side in Side])[:60]
    np.testing.assert_array_equal(whole, expected)
    assert open_output_chunk(whole, None, 0) is whole


def test_what_is_found_early_is_said_once_the_half_is_known_to_be_the_signed_one() -> None:
    turn, seen = TaggedRound(), []

    def take(pieces: Iterator[tuple[int, Ring]]) -> None:
        seen.append(next(pieces))
        raise AggregateOutOfBounds("beyond")

    def altered() -> Iterator[tuple[int, Ring]]:
        return ((start, piece + np.uint64(start > 30)) for start, piece in cut(turn, 20, 40))

    for closely in (False, True):
        with pytest.raises(AggregateOutOfBounds, match="beyond"):
            checked(turn, closely=closely).opened(cut(turn, 20, 40), take)
    assert checked(turn, closely=False).opened(altered(), take) is None
    with pytest.raises(Unavailable, match="serves another half"):
        checked(turn, closely=True).opened(altered(), take)
    assert [start for start, _ in seen] == [0] * 4
