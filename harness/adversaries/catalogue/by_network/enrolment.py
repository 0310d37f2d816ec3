"""Sites that no roster names yet: registrations without an invitation, in another's place, and a roster's other keys.

An operator's desk in this process, with the folder that its command made. What people read to each other by phone is
not tried here.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.scripted.operators import HOUR_S, OTHER, REQUESTER, SITE, Operator, new_keys, public_card
from protocol.errors import BrokenSeal, Unavailable
from protocol.sharing import Side
from protocol.wire.authentic import signature_by
from protocol.wire.chain.change import KeyClaim
from protocol.wire.enrolment.founding import first_roster
from protocol.wire.enrolment.invitation import Invitation
from protocol.wire.enrolment.questions import Founded, Founding, NamedSite
from protocol.wire.keyfile import PartyKeys
from protocol.wire.messages import Roster, Signature
from servers.routes.enrolment import OpenDesk

Try = Callable[[Operator], bool]
_FLOODING, _OTHER = "192.0.2.1", "192.0.2.2"
_QUESTIONS: Final = 700


class Registering(Attack):
    """Several ways to be registered; the figure is how many of them an operator's server took."""

    def __init__(
        self, name: str, party: Party, tries: str, defence: str, without: Mapping[str, object], ways: Mapping[str, Try]
    ) -> None:
        self.name, self.party, self.tries, self.defence, self.without = name, party, tries, defence, without
        self._ways = ways
        self.figure = f"of {len(ways)} such registrations that an operator's server took"

    def attempt(self, folder: Path) -> Found:
        honest = Operator(folder / "honest")
        if not _as_invited(honest, honest.invite()):
            return Found(True, 1, "an honest registration is refused")
        taken = []
        for place, (name, way) in enumerate(self._ways.items()):
            operator = Operator(folder / str(place))
            if way(operator):
                taken.append(name)
        return Found(bool(taken), len(taken), "; ".join(taken))


def _as_invited(operator: Operator, invitation: Invitation, name: str = SITE) -> bool:
    keys = new_keys(name)
    return operator.registers(invitation.secret, name, keys, keys)


def _guessed(operator: Operator) -> bool:
    operator.invite()
    return operator.registers(secrets.token_hex(32), SITE, keys := new_keys(SITE), keys)


def _expired(operator: Operator) -> bool:
    invitation = operator.invite()
    operator.now_s += HOUR_S + 1
    return _as_invited(operator, invitation)


def _stolen(operator: Operator) -> bool:
    """The site has used it before; the thief's public card would take its place."""
    invitation = operator.invite()
    _as_invited(operator, invitation)
    return _as_invited(operator, invitation)


def _withdrawn(operator: Operator) -> bool:
    invitation = operator.invite()
    operator.desk.register.withdraw(SITE, ())
    return _as_invited(operator, invitation)


def _signed_by_another(operator: Operator) -> bool:
    return operator.registers(operator.invite().secret, SITE, new_keys(SITE), new_keys(SITE))


def _named_otherwise(operator: Operator) -> bool:
    return operator.registers(operator.invite().secret, SITE, new_keys(SITE), new_keys(OTHER))


def _old(operator: Operator) -> bool:
    """A registration that a proxy kept for an hour."""
    keys = new_keys(SITE)
    return operator.registers(operator.invite().secret, SITE, keys, keys, at_s=operator.now_s - HOUR_S)


class AnotherKey(Attack):
    """Operator A and the requester want operator B's word for a roster in which a site has a key of theirs."""

    name = "roster-with-another-key"
    party = Party.SERVER_AND_REQUESTER
    tries = "proposes the other operator a roster in which a site has another key than the one that it compared"
    defence = "an operator signs only the roster that it makes itself, of the public cards that it admitted"
    figure = "rosters with another key that an operator signed"
    without: Mapping[str, object] = {"servers.enrolment.desk.Desk._roster_of": lambda *_: _PROPOSED[-1]}

    def attempt(self, folder: Path) -> Found:
        a, b = (Operator(folder, side) for side in Side)
        a.knows(b)
        b.knows(a)
        requester, site = new_keys(REQUESTER), new_keys(SITE)
        b.admitted(requester, requester=True)
        b.admitted(site)
        parties = (public_card(new_keys(SITE)), public_card(requester))
        roster = first_roster((a.desk.card, b.desk.card), REQUESTER, parties)
        _PROPOSED.append(roster)
        proposed = Founding(
            roster=roster.digest(),
            sites=tuple(NamedSite(name=one.name, party=one.digest()) for one in parties),
            signatures=(signature_by(REQUESTER, requester.signing, roster),),
        )
        signed = isinstance(b.founds(proposed, requester).answer, Founded)
        return Found(signed, float(signed))


class WithoutEnd(Attack):
    """Questions of one address, more than all strangers may ask in a minute, while another one asks."""

    name = "questions-without-end"
    party = Party.STRANGER
    tries = "asks an operator's server so often how enrolment stands that nobody else is answered"
    defence = "one line for all strangers with few places for each address, in which whoever holds most makes room"
    figure = "questions of another address that were not answered"
    without: Mapping[str, object] = {
        "servers.routes.enrolment._MOST_WAIT_PER_ADDRESS": 2**20,
        "servers.http.admission.Shares.given_up_for": lambda *_, **__: None,
    }

    def attempt(self, folder: Path) -> Found:
        kept_out = not asyncio.run(self._is_answered(OpenDesk(Operator(folder).desk)))
        return Found(kept_out, float(kept_out))

    async def _is_answered(self, desk: OpenDesk) -> bool:
        flood = [asyncio.create_task(desk.answer(b"a question", _FLOODING)) for _ in range(_QUESTIONS)]
        await asyncio.sleep(0)  # all of them wait
        try:
            await desk.answer(b"a question", _OTHER)
        except BrokenSeal:  # it was opened
            return True
        except Unavailable:
            return False
        finally:
            for one in flood:
                one.cancel()
            await asyncio.gather(*flood, return_exceptions=True)
        return True


class OldKeys(Attack):
    """The site's people renew its keys because somebody has them, who wants to keep them good."""

    name = "old-keys-against-their-renewal"
    party = Party.SITE
    tries = "holds a site's stolen keys and gives its word for them while their renewal is pending, to spoil that one's"
    defence = "a word is kept for the very keys that gave it, and keys in the roster give none"
    figure = "pending renewals that were left without the word of their own keys"
    without: Mapping[str, object] = {
        "servers.enrolment.desk.Desk._claimed": lambda desk, known, claim: desk.register.keep_claim(
            desk.register.registrant(known.party.name).party, claim
        )
    }

    def attempt(self, folder: Path) -> Found:
        a, b = (Operator(folder, side) for side in Side)
        a.knows(b)
        b.knows(a)
        requester, stolen, new = new_keys(REQUESTER), new_keys(SITE), new_keys(SITE)
        first = _founded(a, b, requester, stolen)
        a.admitted(new, renews=True)
        word = _word(new, first)
        a.is_told(word, new)
        a.is_told(_word(stolen, first), stolen)
        spoiled = [one.claim for one in a.desk.register.renewals] != [word]
        return Found(spoiled, float(spoiled))


def _founded(a: Operator, b: Operator, requester: PartyKeys, site: PartyKeys) -> str:
    """A federation of both operators and these two, in place at ``a``. -> the digest of its roster"""
    for operator in (a, b):
        operator.admitted(requester, requester=True)
        operator.admitted(site)
    parties = tuple(public_card(keys) for keys in (requester, site))
    roster = first_roster((a.desk.card, b.desk.card), REQUESTER, parties)
    named = tuple(NamedSite(name=one.name, party=one.digest()) for one in parties)
    signatures = [signature_by(REQUESTER, requester.signing, roster)]
    for operator in (a, b, a):
        founding = Founding(roster=roster.digest(), sites=named, signatures=tuple(signatures))
        answer = operator.founds(founding, requester).answer
        if isinstance(answer, Founded) and not answer.in_place:
            signatures.append(answer.signature)
    return roster.digest()


def _word(keys: PartyKeys, first: str) -> Signature:
    return signature_by(keys.name, keys.signing, KeyClaim(first=first, party=public_card(keys)))


_PROPOSED: list[Roster] = []
"""Without its defence an operator signs whatever it is told, and this is what it is told."""


def enrolments() -> tuple[Attack, ...]:
    """Every attack of this family."""
    usable = "servers.enrolment.register.Register._require_usable"
    return (
        Registering(
            "registration-by-a-thief",
            Party.STRANGER,
            "registers by a guessed, an expired or a withdrawn invitation, by another site's, or by a used one",
            "an invitation's secret serves one public card of the site that it names, for a time",
            {usable: passes, "servers.enrolment.register._require_newcomer": passes},
            {
                "guessed": _guessed,
                "expired": _expired,
                "withdrawn": _withdrawn,
                "of another site": lambda operator: _as_invited(operator, operator.invite(OTHER)),
                "used before": _stolen,
            },
        ),
        Registering(
            "registration-in-anothers-place",
            Party.NETWORK,
            "registers a public card that did not sign, signs in another name, or sends an old registration",
            "a site's own signature under the question, its name in it, and the minute in which it was asked",
            {
                "servers.enrolment.desk.check_signature_of": passes,
                "servers.enrolment.desk.require_asked_by": lambda signed, *_: signed.message,
            },
            {"signed by other keys": _signed_by_another, "in another name": _named_otherwise, "old": _old},
        ),
        WithoutEnd(),
        AnotherKey(),
        OldKeys(),
    )
