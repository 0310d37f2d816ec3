"""Sites that lie beside what they honestly do: what they send must be refused, and change nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

import httpx

from harness.adversaries.forgeries import honest_contribution
from harness.faults.schedule import Lie
from harness.faults.servers_only.parties import ScriptedSite
from protocol.arithmetic.prg import derive
from protocol.sharing import Side
from protocol.wire import paths
from protocol.wire.authentic import sign
from protocol.wire.messages import Announcement, EndCause, ReleaseSet, RoundView, StudyEnd, StudyEndState

_TAKEN: Final = 300
_ANOTHER: Final = "another"


class LyingSite(ScriptedSite):
    """Tells its ``lies`` once per attempt and server. ``told`` counts them."""

    lies: frozenset[Lie] = frozenset()
    told: Callable[[str], None] = staticmethod(lambda lie: None)

    async def contribute(self, side: Side, view: RoundView) -> None:
        if view.announcement.message.roster_head not in (None, *self.journal.chain.digests):
            return
        place = f"{view.round} {view.attempt} {side.value}"
        for lie in sorted(self.lies - {Lie.ANOTHER_FOR_THE_SAME, Lie.DOUBLED}):
            await self._tell(lie, side, view, place)
        await super().contribute(side, view)
        if (f"contribution {place}", side) in self.journal.acknowledged:
            for lie in sorted(self.lies & {Lie.ANOTHER_FOR_THE_SAME, Lie.DOUBLED}):
                await self._tell(lie, side, view, place)

    def _shares(self, announcement: Announcement, attempt: int, name: str) -> dict[Side, bytes]:
        """One that shows each server another face shares two different updates."""
        made = super()._shares(announcement, attempt, name)
        if Lie.TWO_FACES not in self.lies:
            return made
        return {Side.A: made[Side.A], Side.B: self._another(announcement, attempt)[Side.B]}

    def _another(self, announcement: Announcement, attempt: int) -> dict[Side, bytes]:
        """A whole contribution of another update, the same whenever it is asked for."""
        name = f"{_ANOTHER} {announcement.round} {attempt}"
        if f"{name} a" not in self.journal.sent:
            rand = derive(hashlib.sha256(f"{self.name} {name}".encode()).digest(), "share")
            update = self.update(announcement.round) + self.update(announcement.round + 100)
            made = honest_contribution(update, announcement, self.name, self.roster_of(announcement), rand, attempt)
            self.journal.sent.update({f"{name} {side.value}": made[side].sealed() for side in Side})
        return {side: self.journal.sent[f"{name} {side.value}"] for side in Side}

    async def _tell(self, lie: Lie, side: Side, view: RoundView, place: str) -> None:
        if lie is Lie.TWO_FACES or self.journal.sent.setdefault(f"lie {lie} {place}", b"") != b"":
            return
        method, target, body = self._words(lie, side, view)
        try:
            answer = await self.ask(side, method, target, body, "lie")
        except httpx.TransportError:
            return
        self.journal.sent[f"lie {lie} {place}"] = b"told"
        self.told(lie.value)
        if answer.status < _TAKEN and lie is not Lie.DOUBLED:
            self.wrong.append(f"took a lie: server {side.value} took {lie.value} of {self.name}")

    def _words(self, lie: Lie, side: Side, view: RoundView) -> tuple[str, str, bytes]:
        """Method, address and body."""
        number, attempt = view.round, view.attempt
        match lie:
            case Lie.AS_REQUESTER:
                return "PUT", self.path(paths.RELEASE_SET, round=number, attempt=attempt), self._choice(view)
            case Lie.ENDS_THE_STUDY:
                return "POST", self.path(paths.END), self._end()
        address = {
            Lie.OTHER_ROUND: (self.study.name, number + 1, attempt),
            Lie.OTHER_ATTEMPT: (self.study.name, number, attempt + 1),
            Lie.OTHER_STUDY: (_ANOTHER, number, attempt),
        }
        study, to_round, to_attempt = address.get(lie, (self.study.name, number, attempt))
        target = paths.fill(paths.CONTRIBUTION, study=study, round=to_round, attempt=to_attempt)
        return "PUT", target, self._share(lie, side, view)

    def _share(self, lie: Lie, side: Side, view: RoundView) -> bytes:
        announcement, attempt = view.announcement.message, view.attempt
        if lie is Lie.ANOTHER_FOR_THE_SAME:
            return self._another(announcement, attempt)[side]
        both = self._shares(announcement, attempt, f"contribution {view.round} {attempt}")
        if lie is Lie.MALFORMED:
            half = len(both[side]) // 2
            return both[side][:half] + bytes(len(both[side]) - half)
        return both[side.other if lie is Lie.OTHER_SIDE else side]

    def _choice(self, view: RoundView) -> bytes:
        message = ReleaseSet(
            study_digest=self.study.digest(),
            round=view.round,
            attempt=view.attempt,
            agreed_set_digest="00" * 32,
            sites=(self.name, self.roster.requester),
        )
        return sign(message, self.name, self.keys.signing).canonical()

    def _end(self) -> bytes:
        ended, cause = StudyEndState.FAILED, EndCause.PROTOCOL_BROKEN
        message = StudyEnd(study_digest=self.study.digest(), state=ended, cause=cause, reason="a contributor says so")
        return sign(message, self.name, self.keys.signing).canonical()
