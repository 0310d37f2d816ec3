"""A round with tags, in which one party deviates: nothing wrong is to be opened, and nothing opened under wrong tags.

Each attack is a whole round by the product's functions; the figure says how many of a few rounds, each with draws of
its own and both servers in turn as the one that masks, went as the attacker wants.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.scripted_agents import REQUESTER
from harness.adversaries.tagging.tagged_round import CONTRIBUTORS, Half, TaggedRound
from protocol.arithmetic.prg import derive
from protocol.arithmetic.ring import Ring
from protocol.errors import MoietyError, SumAltered
from protocol.parameters import TAG_COORDINATES
from protocol.sharing import Side
from protocol.tags.sums import PAIR
from protocol.wire.messages import Go, ShareKind, TagsFailed

_ROUNDS: Final = 12
_SEED: Final = bytes(range(64, 96))
_GOES: Final = "the requester says go only where both servers' checks add up to zero"
_AT_SITES: Final = "every site holds the sum against the kept tags, whose key no server has"
_CLOSELY: Final = "where kept tags are wrong a site looks at what servers signed, and takes a sum that is theirs"
_NO_ERROR: Final[Mapping[str, object]] = {"protocol.tags.verdicts.sum_of": lambda checks: np.zeros(2, dtype=np.uint64)}
_NO_TAGS: Final[Mapping[str, object]] = {
    "protocol.protection.tagged.CheckedHalves._kept_tags_fit": lambda halves: True,
    "protocol.protection.tagged.CheckedHalves._require_shown_tags": passes,
}
_NO_BOUNDS: Final[Mapping[str, object]] = {
    "protocol.release._require_within": passes,
    "protocol.release.AverageOpener.finish": passes,
}


def _blames(_halves: object) -> bool:
    """A site that takes wrong kept tags for a server's doing."""
    raise SumAltered("the kept tags are wrong", ())


class TaggedAttack(Attack):
    """Twelve rounds, of which each goes as the attacker wants or does not."""

    figure = f"of {_ROUNDS} rounds go as the attacker wants"

    def attempt(self, folder: Path) -> Found:
        rounds = (self._round(derive(_SEED, f"round {number}"), number) for number in range(1, _ROUNDS + 1))
        reached = sum(self._reached(one) for one in rounds)
        return Found(reached > 0, reached)

    @abstractmethod
    def _round(self, seed: bytes, number: int) -> TaggedRound:
        """A round in which the attacker deviates."""

    @abstractmethod
    def _reached(self, turn: TaggedRound) -> bool:
        """Whether the attacker has what it wants of it."""


def _is_opened(turn: TaggedRound) -> bool:
    """Whether the servers serve, and a site that is not the attacker opens an average and uses it."""
    try:
        if not turn.goes:
            return False
        turn.opened(CONTRIBUTORS[1])
    except MoietyError:
        return False
    return True


class AlteredTaggedSum(TaggedAttack):
    """One server alters its half before it fixes it."""

    party = Party.SERVER
    defence = _GOES
    without: Mapping[str, object] = {**_NO_ERROR, **_NO_TAGS, **_NO_BOUNDS}

    def __init__(self, name: str, tries: str, alter: Callable[[Ring], None]) -> None:
        self.name, self.tries, self._alter = name, tries, alter

    def _round(self, seed: bytes, number: int) -> TaggedRound:
        alter = self._alter

        class Altered(TaggedRound):
            def summed(self, side: Side, own: Ring) -> Ring:
                if side is Side.B:
                    alter(own)
                return own

        return Altered(seed, number)

    def _reached(self, turn: TaggedRound) -> bool:
        return _is_opened(turn)


class ForgedCheck(TaggedAttack):
    """A server alters its half, and once it has the seed takes the error out of the check that it signs."""

    name = "tags-forged-check"
    party = Party.SERVER
    tries = "alters the sum, by little or beyond every bound, and signs a check as if it had not"
    defence = _AT_SITES
    figure = f"of {_ROUNDS} rounds go, and no site names the server"
    without = _NO_TAGS

    def _round(self, seed: bytes, number: int) -> TaggedRound:
        error = _large_error if number % 4 < 2 else _small_error

        class Forged(TaggedRound):
            def summed(self, side: Side, own: Ring) -> Ring:
                if side is Side.B:
                    own += error(self.length)
                return own

            def checked(self, side: Side, errors: Ring) -> Ring:
                return errors - self.errors([error(self.length)])[0] if side is Side.B else errors

        return Forged(seed, number)

    def _reached(self, turn: TaggedRound) -> bool:
        """A sum that is merely too large is tried again, and then nobody is to blame."""
        try:
            turn.opened(CONTRIBUTORS[1])
        except SumAltered as altered:
            return altered.sides != (Side.B.value,)
        except MoietyError:
            pass
        return turn.goes


class OtherHalf(TaggedAttack):
    """A server fixes and checks an honest half, and serves an altered one."""

    name = "tags-other-half-served"
    party = Party.SERVER
    tries = "serves something else than the half that it signed"
    defence = _AT_SITES
    without = _NO_TAGS

    def _round(self, seed: bytes, number: int) -> TaggedRound:
        class Other(TaggedRound):
            def served(self, half: Half) -> bytes:
                if half.kind is ShareKind.SEED:
                    return half.content
                return (half.vector(self.length) + _small_error(self.length)).tobytes()

        return Other(seed, number)

    def _reached(self, turn: TaggedRound) -> bool:
        return _is_opened(turn)


class FittedHalf(OtherHalf):
    """Once it has the shown seed a server alters its half and fits the shown tags in it to the error."""

    name = "tags-fitted-to-the-shown-key"
    tries = "serves an altered half with shown tags that fit it, which it can make once it is shown the seed"

    def _round(self, seed: bytes, number: int) -> TaggedRound:
        class Fitted(TaggedRound):
            def served(self, half: Half) -> bytes:
                if half.kind is ShareKind.SEED:
                    return half.content
                error = _small_error(self.length)
                error[-TAG_COORDINATES:][:PAIR] = self.errors([error])[0]
                return (half.vector(self.length) + error).tobytes()

        return Fitted(seed, number)


class WrongKeptTag(TaggedAttack):
    """A site shares wrong kept tags, which nobody can name it for: an honest sum is to be discarded over them."""

    name = "tags-wrong-among-sites"
    party = Party.SITE
    tries = "makes the tags wrong that only sites check, to have an honest sum discarded and a server blamed"
    defence = _CLOSELY
    figure = f"of {_ROUNDS} honest sums are discarded; without wrong tags 0"
    without: Mapping[str, object] = {"protocol.protection.tagged.CheckedHalves._kept_tags_fit": _blames}

    def _round(self, seed: bytes, number: int) -> TaggedRound:
        class Wrong(TaggedRound):
            def shared(self, site: str, tagged: Ring) -> Ring:
                if site == "c1":
                    tagged[-1] += np.uint64(1)
                return tagged

        return Wrong(seed, number)

    def _reached(self, turn: TaggedRound) -> bool:
        try:
            return not turn.goes or not np.allclose(turn.opened(CONTRIBUTORS[1]), turn.average, atol=1e-3)
        except MoietyError:
            return True


class WrongTag(TaggedAttack):
    """A site shares another number than its tag; it wants a sum to be opened, so that it is tried again without it."""

    party = Party.SITE
    defence = _GOES
    without: Mapping[str, object] = {**_NO_ERROR, **_NO_TAGS}

    def __init__(self, name: str, tries: str, site: str) -> None:
        self.name, self.tries, self._site = name, tries, site

    def _round(self, seed: bytes, number: int) -> TaggedRound:
        wrong = self._site

        class Wrong(TaggedRound):
            def shared(self, site: str, tagged: Ring) -> Ring:
                if site == wrong:
                    tagged[-TAG_COORDINATES + 1] += np.uint64(1)
                return tagged

        return Wrong(seed, number)

    def _reached(self, turn: TaggedRound) -> bool:
        return _is_opened(turn)


class RequesterGoes(TaggedAttack):
    """The requester's own tags are wrong, and it says go all the same: it would have a sum that sites must discard."""

    name = "tags-go-against-the-checks"
    party = Party.REQUESTER
    tries = "has wrong tags itself and signs go over checks that do not add up to zero"
    defence = "servers serve, and sites open, on a go over checks that add up to zero and on no other"
    without: Mapping[str, object] = {**_NO_ERROR, **_NO_TAGS}

    def _round(self, seed: bytes, number: int) -> TaggedRound:
        class Goes(TaggedRound):
            def shared(self, site: str, tagged: Ring) -> Ring:
                if site == REQUESTER:
                    tagged[-TAG_COORDINATES] += np.uint64(5)
                return tagged

            def judged(self, said: Go | TagsFailed) -> Go | TagsFailed:
                return Go(**{name: getattr(said, name) for name in type(said).model_fields})

        return Goes(seed, number)

    def _reached(self, turn: TaggedRound) -> bool:
        return _is_opened(turn)


class OtherSeed(TaggedAttack):
    """The requester tells one site another seed than it announced, so that this site is named for wrong tags."""

    name = "tags-other-seed"
    party = Party.REQUESTER
    tries = "tells one site another seed than the others, so that its tags are wrong and it is named for it"
    defence = "the announcement holds the seed's hash, and a site makes no tags with a seed that does not match"
    without: Mapping[str, object] = {
        "protocol.protection.tagged.require_seed": lambda announcement, seed: bytes.fromhex(seed)
    }

    def _round(self, seed: bytes, number: int) -> TaggedRound:
        class Swapped(TaggedRound):
            def told_seed(self, site: str) -> bytes:
                return bytes(32) if site == CONTRIBUTORS[1] else self.tag_seed

        return Swapped(seed, number)

    def _reached(self, turn: TaggedRound) -> bool:
        try:
            return not turn.goes and turn.wrong().sites == (CONTRIBUTORS[1],)
        except MoietyError:
            return False


def _small_error(length: int) -> Ring:
    """Far below every bound."""
    error = np.zeros(length, dtype=np.uint64)
    error[3] = 1000
    return error


def _large_error(length: int) -> Ring:
    """Beyond the bound of a coordinate."""
    return _small_error(length) << np.uint64(30)


def _one_coordinate(own: Ring) -> None:
    own[3] += np.uint64(2**20)


def _a_constant(own: Ring) -> None:
    own[:-TAG_COORDINATES] += np.uint64(2**10)


def _half_the_ring(own: Ring) -> None:
    own[3:4] += np.uint64(2**63)


def tagged_sums() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return (
        AlteredTaggedSum("tags-plus-half-a-norm", "adds half a clip norm to one coordinate", _one_coordinate),
        AlteredTaggedSum("tags-plus-a-constant", "adds a small constant to every coordinate", _a_constant),
        AlteredTaggedSum("tags-plus-two-to-the-63", "adds 2^63 to one coordinate", _half_the_ring),
        ForgedCheck(),
        OtherHalf(),
        FittedHalf(),
        WrongKeptTag(),
        WrongTag("tags-wrong-at-a-site", "shares a wrong tag, to have the sum discarded once it is open", "c1"),
        RequesterGoes(),
        OtherSeed(),
    )
