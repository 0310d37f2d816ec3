"""Sites that no roster names yet: registrations without an invitation, in another's place, and a roster's other keys.

Operators' desks in this process, with the folders that their commands made. What people read to each other by phone is
not tried here.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from harness.attack.attack import Attempt, Found, found, passes, taken_out
from host.randomness import new_party_keys
from protocol.errors import BrokenSeal, MoietyError, Unavailable
from protocol.messages.control import Party, Role, Roster, Signature, signature_by
from protocol.messages.roster import KeyClaim
from protocol.roster.enrolment import (
    Answered,
    Asked,
    Founded,
    Founding,
    Invitation,
    NamedSite,
    Registration,
    StandingQuestion,
    close_asked,
    fingerprint_of,
    first_roster,
    open_answered,
)
from protocol.roster.keyfile import PartyKeys
from protocol.sharing import Side
from servers.api.enrolment import OpenDesk
from servers.enrolment.desk import Desk
from servers.enrolment.folder import NewServer, make_folder
from servers.enrolment.pairing import pair
from servers.settings import load_settings

_FEDERATION: Final = "clinics"
_SITE, _OTHER, _REQUESTER = "clinic-1", "clinic-2", "requester"
_HOUR_S: Final = 3600.0


def _new_keys(name: str) -> PartyKeys:
    return new_party_keys(name, Role.SITE)


def _card(keys: PartyKeys) -> Party:
    return keys.party(samples=100)


class Operator:
    """One server's operator before there is a federation; ``now_s`` is its clock."""

    def __init__(self, folder: Path, side: Side = Side.A) -> None:
        self.now_s = 1_800_000_000.0
        new = NewServer(
            side=side,
            federation=_FEDERATION,
            operator=f"operator-{side.value}",
            url=f"https://{side.value}.example:8443",
            port=8443,
            own_ca=True,
        )
        with taken_out({"servers.enrolment.folder.require_free": passes}):  # nobody listens here
            make_folder(new, folder / side.value)
        self._settings = load_settings(folder / side.value / "settings.toml")
        self.desk = Desk(self._settings, lambda: self.now_s)

    def knows(self, other: Operator) -> None:
        """Keep the other operator's card, whose fingerprint was read over the phone."""
        pair(self._settings, other.desk.card, fingerprint_of(other.desk.card))

    def invite(self, site: str = _SITE, *, requester: bool = False, renews: bool = False) -> Invitation:
        return self.desk.register.invite(self.desk.card, site, _HOUR_S, requester=requester, renews=renews)

    def admitted(self, keys: PartyKeys, *, requester: bool = False, renews: bool = False) -> None:
        """A site that registered and whose fingerprint was compared."""
        invitation = self.invite(keys.name, requester=requester, renews=renews)
        self.registers(invitation, keys, keys)
        self.desk.register.admit(keys.name, fingerprint_of(_card(keys)))

    def registers(self, by: Invitation | str, of: PartyKeys, signs: PartyKeys, at_s: float | None = None) -> bool:
        """Register ``of``'s public card. -> whether it is registered afterwards"""
        party = _card(of)
        secret = by if isinstance(by, str) else by.secret
        question = self._question(of.name, Registration(secret=secret, party=party), at_s)
        try:
            self.desk.answer(close_asked(question, signs, self.desk.card))
        except MoietyError:
            return False
        return any(one.party == party for one in self.desk.register.registrants)

    def asks(self, question: Founding | StandingQuestion, keys: PartyKeys) -> Answered:
        """Answer a requester that proposes a first roster, or a site that gives its word for its keys."""
        asked = self._question(keys.name, question, None)
        return open_answered(self.desk.answer(close_asked(asked, keys, self.desk.card)), keys, asked, self.desk.card)

    def _question(self, name: str, question: Registration | Founding | StandingQuestion, at_s: float | None) -> Asked:
        return Asked(
            federation=_FEDERATION,
            to=self.desk.card.digest(),
            name=name,
            at_s=int(self.now_s if at_s is None else at_s),
            question=question,
        )


# --- registrations ----------------------------------------------------------------------------------------------------

Way = Callable[[Operator], bool]


def _registering(ways: Mapping[str, Way], folder: Path) -> Found:
    """Several ways to be registered; the figure is how many of them an operator's server took."""
    honest = Operator(folder / "honest")
    if not _as_invited(honest, honest.invite()):
        return Found(True, 1, "an honest registration is refused")
    return found([name for place, (name, way) in enumerate(ways.items()) if way(Operator(folder / str(place)))])


def _as_invited(operator: Operator, invitation: Invitation) -> bool:
    keys = _new_keys(_SITE)
    return operator.registers(invitation, keys, keys)


def _guessed(operator: Operator) -> bool:
    operator.invite()
    return operator.registers(secrets.token_hex(32), keys := _new_keys(_SITE), keys)


def _expired(operator: Operator) -> bool:
    invitation = operator.invite()
    operator.now_s += _HOUR_S + 1
    return _as_invited(operator, invitation)


def _withdrawn(operator: Operator) -> bool:
    invitation = operator.invite()
    operator.desk.register.withdraw(_SITE, ())
    return _as_invited(operator, invitation)


def _stolen(operator: Operator) -> bool:
    """The site has used it before; the thief's public card would take its place."""
    invitation = operator.invite()
    _as_invited(operator, invitation)
    return _as_invited(operator, invitation)


def _old(operator: Operator) -> bool:
    """A registration that a proxy kept for an hour."""
    keys = _new_keys(_SITE)
    return operator.registers(operator.invite(), keys, keys, at_s=operator.now_s - _HOUR_S)


_BY_A_THIEF: Final[Mapping[str, Way]] = {
    "guessed": _guessed,
    "expired": _expired,
    "withdrawn": _withdrawn,
    "of another site": lambda operator: _as_invited(operator, operator.invite(_OTHER)),
    "used before": _stolen,
}
_IN_ANOTHERS_PLACE: Final[Mapping[str, Way]] = {
    "signed by other keys": lambda op: op.registers(op.invite(), _new_keys(_SITE), _new_keys(_SITE)),
    "in another name": lambda op: op.registers(op.invite(), _new_keys(_SITE), _new_keys(_OTHER)),
    "old": _old,
}

# --- rosters and keys -------------------------------------------------------------------------------------------------

_PROPOSED: Final[list[Roster]] = []
"""Without its defence an operator signs whatever it is told, and this is what it is told."""


def _operators(folder: Path) -> tuple[Operator, Operator]:
    a, b = (Operator(folder, side) for side in Side)
    a.knows(b)
    b.knows(a)
    return a, b


def _founding(roster: Roster, parties: tuple[Party, ...], *signatures: Signature) -> Founding:
    named = tuple(NamedSite(name=one.name, party=one.digest()) for one in parties)
    return Founding(roster=roster.digest(), sites=named, signatures=signatures)


def _another_key(folder: Path) -> Found:
    """Operator A and the requester want operator B's word for a roster in which a site has a key of theirs."""
    a, b = _operators(folder)
    requester = _new_keys(_REQUESTER)
    b.admitted(requester, requester=True)
    b.admitted(_new_keys(_SITE))
    parties = (_card(_new_keys(_SITE)), _card(requester))
    roster = first_roster((a.desk.card, b.desk.card), _REQUESTER, parties)
    _PROPOSED.append(roster)
    proposed = _founding(roster, parties, signature_by(_REQUESTER, requester.signing, roster))
    signed = isinstance(b.asks(proposed, requester).answer, Founded)
    return Found(signed, float(signed))


def _old_keys(folder: Path) -> Found:
    """The site's people renew its keys because somebody has them, who wants to keep them good."""
    a, b = _operators(folder)
    stolen, new = _new_keys(_SITE), _new_keys(_SITE)
    first = _founded(a, b, _new_keys(_REQUESTER), stolen)
    a.admitted(new, renews=True)
    word = _word(new, first)
    a.asks(StandingQuestion(claim=word), new)
    a.asks(StandingQuestion(claim=_word(stolen, first)), stolen)
    spoiled = [one.claim for one in a.desk.register.renewals] != [word]
    return Found(spoiled, float(spoiled))


def _founded(a: Operator, b: Operator, requester: PartyKeys, site: PartyKeys) -> str:
    """A federation of both operators and these two, in place at ``a``. -> the digest of its roster"""
    for operator in (a, b):
        operator.admitted(requester, requester=True)
        operator.admitted(site)
    parties = (_card(requester), _card(site))
    roster = first_roster((a.desk.card, b.desk.card), _REQUESTER, parties)
    signatures = [signature_by(_REQUESTER, requester.signing, roster)]
    for operator in (a, b, a):
        answer = operator.asks(_founding(roster, parties, *signatures), requester).answer
        if isinstance(answer, Founded) and not answer.in_place:
            signatures.append(answer.signature)
    return roster.digest()


def _word(keys: PartyKeys, first: str) -> Signature:
    return signature_by(keys.name, keys.signing, KeyClaim(first=first, party=_card(keys)))


# --- questions without end --------------------------------------------------------------------------------------------


def _questions_without_end(folder: Path) -> Found:
    """Questions of one address, more than all strangers may ask in a minute, while another one asks."""
    kept_out = not asyncio.run(_is_answered(OpenDesk(Operator(folder).desk)))
    return Found(kept_out, float(kept_out))


async def _is_answered(desk: OpenDesk) -> bool:
    flood = [asyncio.create_task(desk.answer(b"a question", "192.0.2.1")) for _ in range(700)]
    await asyncio.sleep(0)  # all of them wait
    try:
        await desk.answer(b"a question", "192.0.2.2")
    except BrokenSeal:  # it was opened
        return True
    except Unavailable:
        return False
    finally:
        for one in flood:
            one.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
    return True


ATTEMPTS: Final = {
    "registration-by-a-thief": Attempt(
        partial(_registering, _BY_A_THIEF),
        {
            "servers.enrolment.register.Register._require_usable": passes,
            "servers.enrolment.register._require_newcomer": passes,
        },
    ),
    "registration-in-anothers-place": Attempt(
        partial(_registering, _IN_ANOTHERS_PLACE),
        {
            "servers.enrolment.desk.check_signature_of": passes,
            "servers.enrolment.desk.require_asked_by": lambda signed, *_: signed.message,
        },
    ),
    "questions-without-end": Attempt(
        _questions_without_end,
        {
            "servers.api.enrolment._MOST_WAIT_PER_ADDRESS": 2**20,
            "servers.api.admission.Shares.given_up_for": lambda *_, **__: None,
        },
    ),
    "roster-with-another-key": Attempt(
        _another_key, {"servers.enrolment.desk.Desk._roster_of": lambda *_: _PROPOSED[-1]}
    ),
    "old-keys-against-their-renewal": Attempt(
        _old_keys,
        {
            "servers.enrolment.desk.Desk._claimed": lambda desk, known, claim: desk.register.keep_claim(
                desk.register.registrant(known.party.name).party, claim
            )
        },
    ),
}
