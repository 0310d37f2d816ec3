"""Answers what sites that no roster names yet ask one operator; founds the federation when everybody has signed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from host.durable import write_durably
from host.private_files import private_folder
from host.settings import read_text
from protocol.errors import (
    BadSignature,
    ConfigurationError,
    ConflictingMessage,
    MoietyError,
    NotListed,
    RosterRefused,
    StorageFull,
    UnknownParty,
)
from protocol.wire.authentic import check_signature, require_roster, signature_by
from protocol.wire.chain.chain import RosterChain
from protocol.wire.chain.file import parse_chain
from protocol.wire.enrolment.exchange import close_answered, open_asked, require_asked_by
from protocol.wire.enrolment.founding import first_roster
from protocol.wire.enrolment.questions import (
    Answered,
    Asked,
    Founded,
    Founding,
    Refused,
    Registrant,
    Registration,
    Standing,
)
from protocol.wire.keyfile import dump_roster
from protocol.wire.messages import Party, Roster, Signed
from servers.enrolment.pairing import own_card, paired
from servers.enrolment.register import Register
from servers.settings import ServerSettings

_MOST_DETAIL_CHARACTERS: Final = 4000


class Desk:
    """One operator's, in its running server. ``on_founded`` is called once the first roster is in place."""

    def __init__(
        self, settings: ServerSettings, clock: Callable[[], float], on_founded: Callable[[], None] = lambda: None
    ) -> None:
        """Raises: ConfigurationError"""
        self._settings = settings
        self._clock = clock
        self._on_founded = on_founded
        self.card, self._keys = own_card(settings)
        self.register = Register(settings.data_dir, clock)

    def answer(self, sealed: bytes) -> bytes:
        """The sealed answer to a sealed question; a refusal too is sealed, once it is known to whom.

        Raises: BrokenSeal, MalformedMessage, OtherVersion, BadSignature, UnknownParty; nobody signs these
        """
        signed = open_asked(sealed, self._keys, self.card)
        asker = self._asker(signed.message)
        check_signature_of(signed, asker)
        answer: Standing | Founded | Refused
        try:
            answer = self._answer(require_asked_by(signed, asker, self._clock()), asker)
        except MoietyError as refused:
            answer = Refused(code=refused.code, detail=refused.detail[:_MOST_DETAIL_CHARACTERS])
        return close_answered(Answered(asked=signed.message.digest(), answer=answer), self._keys, asker)

    def waits_for(self) -> tuple[str, ...]:
        """What is still to be done until this server has a roster, in words for its operator."""
        if first_in_place(self._settings) is not None:
            return ()
        registrants = self.register.registrants
        found = [] if paired(self._settings) else ["the other operator's card ('moiety server pair')"]
        if not any(one.requester for one in registrants):
            found.append("the requester to join ('moiety server invite NAME --requester')")
        waiting = [one.party.name for one in registrants if not one.admitted]
        found += [f"{name} to be admitted ('moiety server admit {name} --fingerprint ...')" for name in waiting]
        return tuple(found) or ("the requester to found the federation ('moiety site found')",)

    def _asker(self, asked: Asked) -> Party:
        """Raises: UnknownParty"""
        if isinstance(asked.question, Registration):
            if asked.question.party.name != asked.name:
                raise BadSignature(f"{asked.name!r} registers {asked.question.party.name!r}: a site registers itself")
            return asked.question.party
        known = self.register.registrant(asked.name)
        if known is None:
            raise UnknownParty(f"{asked.name!r} has not registered here: run 'moiety site join' first")
        return known.party

    def _answer(self, asked: Asked, asker: Party) -> Standing | Founded:
        if isinstance(asked.question, Registration):
            return self._standing(self._registered(asked.question))
        known = self.register.registrant(asker.name)
        if known is None:
            raise UnknownParty(f"{asker.name!r} was withdrawn: ask the operator for another invitation")
        return self._found(asked.question, known) if isinstance(asked.question, Founding) else self._standing(known)

    def _registered(self, registration: Registration) -> Registrant:
        party = registration.party
        chain = _chain_in_place(self._settings)
        others = [one.party for one in (self.card, paired(self._settings)) if one is not None]
        others += [] if chain is None else [other for roster in chain.rosters for other in roster.parties]
        for other in others:
            if other.name == party.name and other != party:
                raise ConflictingMessage(f"the name {party.name!r} is taken in this federation: join under another")
        return self.register.register(registration)

    def _standing(self, known: Registrant) -> Standing:
        shown = known.requester and known.admitted
        return Standing(
            admitted=known.admitted,
            waits_for=self._waits_for_site(known),
            peer=paired(self._settings),
            registrants=self.register.registrants if shown else (),
            roster=first_in_place(self._settings) if known.admitted else None,
        )

    def _waits_for_site(self, known: Registrant) -> tuple[str, ...]:
        operator, name = self.card.party.name, known.party.name
        if not known.admitted:
            return (f"{operator} to admit {name}: read the fingerprint to its people over the phone",)
        signed = first_in_place(self._settings)
        if signed is None:
            return tuple(f"{operator}: {what}" for what in self.waits_for())
        if signed.message.party(name) is None:
            return (f"a change of the roster that adds {name} (docs/enrolling.md, 'A site that comes later')",)
        return ()

    def _found(self, founding: Founding, known: Registrant) -> Founded:
        """Raises: NotListed, RosterRefused, ConfigurationError, BadSignature, StorageFull"""
        if not (known.requester and known.admitted):
            raise NotListed(f"{known.party.name!r} is not the admitted requester, who alone founds the federation")
        there = first_in_place(self._settings)
        if there is not None and there.message.digest() != founding.roster:
            raise RosterRefused(
                f"the federation was founded before, with the roster {there.message.digest()[:16]}: take that one "
                "('moiety site found' does it by itself)"
            )
        roster = self._roster_of(founding, known.party.name) if there is None else there.message
        requester = next((one for one in founding.signatures if one.signer == known.party.name), None)
        if requester is None:
            raise BadSignature("the requester signs the roster before the operators do")
        check_signature(roster, requester, known.party)
        own = signature_by(self._keys.name, self._keys.signing, roster)
        signed = Signed[Roster](message=roster, signatures=founding.signatures)
        if there is None and _complete(signed):
            self._put_in_place(signed)
            return Founded(signature=own, in_place=True)
        return Founded(signature=own, in_place=there is not None)

    def _roster_of(self, founding: Founding, requester: str) -> Roster:
        """What this operator has itself admitted, and nothing else that it is told."""
        peer = paired(self._settings)
        if peer is None:
            raise ConfigurationError(f"{self.card.party.name} has not compared the other operator's card yet")
        admitted = {one.party.name: one.party for one in self.register.registrants if one.admitted}
        for named in founding.sites:
            party = admitted.get(named.name)
            if party is None:
                raise RosterRefused(f"{self.card.party.name} has not admitted {named.name!r}")
            if party.digest() != named.party:
                raise RosterRefused(
                    f"{self.card.party.name} admitted {named.name!r} under another public card than the one proposed: "
                    "somebody put another key in its place; nobody signs: compare its fingerprint with both operators"
                )
        roster = first_roster((self.card, peer), requester, [admitted[named.name] for named in founding.sites])
        if roster.digest() != founding.roster:
            raise RosterRefused(
                f"{self.card.party.name} makes another roster of the same sites: the operators' cards differ from "
                "those that the requester has; nobody signs: compare both operators' fingerprints by phone"
            )
        return roster

    def _put_in_place(self, signed: Signed[Roster]) -> None:
        path = self._settings.roster
        try:
            private_folder(path.parent)
            write_durably(path, dump_roster(signed).encode())
        except StorageFull:
            raise
        except OSError as error:
            raise ConfigurationError(
                f"{self.card.party.name} cannot write its roster ({error.strerror}): its operator looks at key 'roster'"
            ) from None
        self._on_founded()


def check_signature_of(signed: Signed[Asked], asker: Party) -> None:
    """Before anything is said about the question. Raises: BadSignature"""
    found = signed.signature_of(asker.name)
    if found is None:
        raise BadSignature(f"the question is not signed by {asker.name!r}")
    check_signature(signed.message, found, asker)


def first_in_place(settings: ServerSettings) -> Signed[Roster] | None:
    """The first roster that this server has, complete. Raises: ConfigurationError, BadSignature"""
    chain = _chain_in_place(settings)
    if chain is None:
        return None
    require_roster(chain.first)
    return chain.first


def names_in_place(settings: ServerSettings) -> tuple[str, ...]:
    """Everybody who is or was in the roster here. Raises: ConfigurationError"""
    chain = _chain_in_place(settings)
    return () if chain is None else tuple(chain.founding_keys)


def _chain_in_place(settings: ServerSettings) -> RosterChain | None:
    if not settings.roster.exists():
        return None
    return parse_chain(read_text(settings.roster), str(settings.roster))


def _complete(signed: Signed[Roster]) -> bool:
    try:
        require_roster(signed)
    except BadSignature:
        if len(signed.signatures) < 3:  # both operators and the requester
            return False
        raise
    return True
