"""A server that aborts where it likes, with the requester or alone: a round that ends twice, or is measured twice.

Two ends of one round, or two sums under one mask, show the difference of two sums over almost the same sites. The
other server is real, with its store and keys; what it is asked comes from a script.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from harness.adversaries.catalogue.attack import Attack, Found, Party
from harness.adversaries.scripted.one_server import (
    KEY,
    OneServer,
    Peer,
    by_operator,
    one_server,
    release_of,
    told_of,
)
from harness.adversaries.scripted_agents import SITES
from protocol.errors import ConflictingMessage, MoietyError, ProtocolViolation, UnknownResource
from protocol.parameters import Needs
from protocol.rounds.side_a import outcome_of
from protocol.rounds.side_b import Move
from protocol.rounds.states import AtA
from protocol.rounds.steps import Act, End, FromB, Signature, Step
from protocol.rounds.transitions import RoundEvent, RoundProgress
from protocol.sharing import Side
from protocol.wire.messages import Announcement, OutcomeCause, Purpose, RoundState
from servers.rounds.end_round import next_step
from servers.rounds.outcomes import countersign_outcome
from servers.rounds.release import commit_release, with_mask_seed
from servers.server import Server

_UPDATE: Final = told_of()
_RANKING: Final = told_of(Purpose.RANKING, Needs.INNER_PRODUCTS)
_ALL, _WITHOUT_LAST = release_of(*SITES, told=_UPDATE), release_of(*SITES[:-1], told=_UPDATE)
_SKIPPED, _BURNT = RoundState.SKIPPED, RoundState.BURNT
_LATE, _LOST = OutcomeCause.NOT_AGREED_IN_TIME, OutcomeCause.CORRELATIONS_LOST
_NOT_ASKED: Final = ProtocolViolation("not asked")


@dataclass(frozen=True)
class Setting:
    """Which server is honest, and where its round stands."""

    side: Side
    state: RoundState
    told: Announcement = _UPDATE


class TwoEnds(Attack):
    """One script against one honest server; it succeeds when that server does what it must not do any more."""

    figure = "second ends of a round, or second sums under its mask"

    def __init__(
        self,
        name: str,
        party: Party,
        tries: str,
        defence: str,
        setting: Setting,
        script: Callable[[OneServer], bool],
        without: Mapping[str, object],
    ) -> None:
        self.name, self.party, self.tries, self.defence = name, party, tries, defence
        self._setting, self._script, self.without = setting, script, without

    def attempt(self, folder: Path) -> Found:
        of = self._setting
        with one_server(folder, of.side, of.state, of.told) as honest:
            try:
                twice = self._script(honest)
            except MoietyError as refused:
                return Found(False, 0, refused.detail)
        return Found(twice, float(twice))


# --- scripts ----------------------------------------------------------------------------------------------------------


def _skip_after_release(honest: OneServer) -> bool:
    held = honest.changed(release_set=_ALL)
    commit_release(honest.server, honest.store.study(KEY.study), held, "output")
    countersign_outcome(honest.server, KEY, by_operator(Side.A, _SKIPPED, _LATE))
    return True


def _release_after_skip(honest: OneServer) -> bool:
    held = honest.changed(release_set=_ALL)
    countersign_outcome(honest.server, KEY, by_operator(Side.A, _SKIPPED, _LATE))
    commit_release(honest.server, honest.store.study(KEY.study), held, "a sum that was on its way")
    return honest.now.state is RoundState.RELEASED


def _swapped_release_set(honest: OneServer) -> bool:
    """y(all) - PRG(t) and y(all but one) - PRG(t): B would subtract them."""
    sent = with_mask_seed(honest.server, honest.changed(release_set=_ALL))
    ending = honest.endings(Peer(_NOT_ASKED, _WITHOUT_LAST))
    conflict = ConflictingMessage("B says now that it has another one")
    adopted = asyncio.run(ending.adopt_peers_release_set(honest.store.study(KEY.study), sent, conflict))
    return adopted.release_set == _WITHOUT_LAST


def _again_after_opening(wanted: RoundState) -> Callable[[OneServer], bool]:
    def script(honest: OneServer) -> bool:
        countersign_outcome(honest.server, KEY, by_operator(Side.A, wanted, _LATE if wanted is _SKIPPED else _LOST))
        return True

    return script


def _burnt_in_private(honest: OneServer) -> bool:
    """B signs the burn, refuses it, and answers the skip by what it signed: another attempt of a skipped round."""
    peer = Peer(UnknownResource("no such round"), signs=True)
    burnt = End(outcome_of(honest.record.key, _BURNT, OutcomeCause.PRODUCTS_REFUSED))
    asyncio.run(honest.endings(peer).end(honest.record, burnt))
    now = honest.store.current_round(KEY.study)
    return now is not None and now.key.attempt > 1


# --- with the defence taken out ---------------------------------------------------------------------------------------


def _any_end(state: object, message: Any, roster: object) -> Move:  # noqa: ANN401  # of a round with or without tags
    return Move(RoundEvent(message.outcome.value))


def _any_step(progress: RoundProgress, event: RoundEvent) -> RoundProgress:
    """Every way leads from every state."""
    again = event is RoundEvent.RETRIED
    state = RoundState.ANNOUNCED if again else RoundState(event.value)
    return replace(progress, state=state, attempt=progress.attempt + again)


def _any_set(server: object, state: object, *_: object) -> Act:
    """B's release set is taken whenever it names another one."""
    return Act.TAKE


def _any_signature(server: Server, state: AtA, answer: FromB | None = None, asked_at_s: float | None = None) -> Step:
    """Whatever B signs is taken for what it was asked to sign."""
    return Act.TAKE if isinstance(answer, Signature) else next_step(server, state, answer, asked_at_s)


_SIGNS: Final = {"servers.rounds.outcomes.answer": _any_end, "servers.rounds.outcomes.step": _any_step}
_ONE_END: Final = "a round ends once: what a server has signed or released bars every other end"


def _ends_skip_after_release() -> TwoEnds:
    measured = RoundState.MEASURED
    alone = Party.SERVER
    at_b = Side.B
    return TwoEnds(
        "ends-skip-after-release",
        alone,
        "has a round signed as skipped whose sum has left, so that sites allow another over nearly the same sites",
        _ONE_END,
        Setting(at_b, measured),
        _skip_after_release,
        _SIGNS,
    )


def _ends_release_after_skip() -> TwoEnds:
    measured = RoundState.MEASURED
    both = Party.SERVER_AND_REQUESTER
    at_b = Side.B
    return TwoEnds(
        "ends-release-after-skip",
        both,
        "has a round signed as skipped while its sum is on its way, and takes the sum all the same",
        _ONE_END,
        Setting(at_b, measured),
        _release_after_skip,
        {"servers.rounds.release.step": _any_step},
    )


def _ends_second_release_set() -> TwoEnds:
    measured = RoundState.MEASURED
    both = Party.SERVER_AND_REQUESTER
    return TwoEnds(
        "ends-second-release-set",
        both,
        "names another release set once the mask is drawn, for two sums under one mask",
        "once a server has drawn its mask it takes no other release set",
        Setting(Side.A, measured),
        _swapped_release_set,
        {"servers.rounds.end_round.next_step": _any_set},
    )


def _ends_skip_after_opening() -> TwoEnds:
    measured = RoundState.MEASURED
    both = Party.SERVER_AND_REQUESTER
    at_b = Side.B
    return TwoEnds(
        "ends-skip-after-opening",
        both,
        "has a ranking signed as skipped that is measured, for a second number about every site's own model",
        "a server that holds its half of what is opened signs neither skip nor burn",
        Setting(at_b, measured, _RANKING),
        _again_after_opening(_SKIPPED),
        _SIGNS,
    )


def _ends_burn_after_opening() -> TwoEnds:
    measured = RoundState.MEASURED
    both = Party.SERVER_AND_REQUESTER
    at_b = Side.B
    return TwoEnds(
        "ends-burn-after-opening",
        both,
        "has an attempt burnt that is measured, for a second challenge over the same updates",
        "a server that holds its half of what is opened signs neither skip nor burn",
        Setting(at_b, measured, _RANKING),
        _again_after_opening(_BURNT),
        _SIGNS,
    )


def _ends_burn_in_private() -> TwoEnds:
    locked = RoundState.LOCKED
    both = Party.SERVER_AND_REQUESTER
    return TwoEnds(
        "ends-burn-in-private",
        both,
        "signs a burn in private, refuses it, and answers the skip that follows by it: a second attempt of a round "
        "that sites count as skipped",
        "a server takes another's signature only under what it asked it to sign",
        Setting(Side.A, locked),
        _burnt_in_private,
        {"servers.rounds.end_round.next_step": _any_signature},
    )


def second_ends() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return (
        _ends_skip_after_release(),
        _ends_release_after_skip(),
        _ends_second_release_set(),
        _ends_skip_after_opening(),
        _ends_burn_after_opening(),
        _ends_burn_in_private(),
    )
