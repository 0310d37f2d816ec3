"""Answers what sites that no roster names yet ask one operator; founds the federation when everybody has signed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from protocol.errors import (
    BadSignature,
    ConfigurationError,
    ConflictingMessage,
    MoietyError,
    NotListed,
    RosterRefused,
    UnknownParty,
    WrongRound,
)
from protocol.messages.control import Party, Roster, Signature, Signed, check_signature, require_roster, signature_by
from protocol.messages.roster import RosterChange
from protocol.roster.chain import Given, RosterChain, Wanted, dump_chain, proposed, require_claim, signed_by, signers
from protocol.roster.enrolment import (
    Answered,
    Asked,
    Changing,
    Founded,
    Founding,
    Refused,
    Registrant,
    Registration,
    Standing,
    close_answered,
    first_roster,
    open_asked,
    require_asked_by,
)
from protocol.roster.keyfile import dump_roster
from servers.enrolment.pairing import own_card, paired
from servers.enrolment.register import Register, end_renewals, first_in_place, put_in_place
from servers.identity.roster import newest_chain
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
        asker = self._asker(signed)
        answer: Standing | Founded | Refused
        try:
            answer = self._answer(require_asked_by(signed, asker, self._clock()), asker)
        except MoietyError as refused:
            answer = Refused(code=refused.code, detail=refused.detail[:_MOST_DETAIL_CHARACTERS])
        return close_answered(Answered(asked=signed.message.digest(), answer=answer), self._keys, asker)

    def waits_for(self) -> tuple[str, ...]:
        """Return what is still to be done until this server has a roster, in words for its operator."""
        if first_in_place(self._settings) is not None:
            return ()
        registrants = self.register.registrants
        found = [] if paired(self._settings) else ["the other operator's card ('moiety server pair')"]
        if not any(one.requester for one in registrants):
            found.append("the requester to join ('moiety server invite NAME --requester')")
        waiting = [one.party.name for one in registrants if not one.admitted]
        found += [f"{name} to be admitted ('moiety server admit {name} --fingerprint ...')" for name in waiting]
        return tuple(found) or ("the requester to found the federation ('moiety site found')",)

    def _asker(self, signed: Signed[Asked]) -> Party:
        """Return the party that signed the question, before anything is said about it. Raises: UnknownParty,
        BadSignature
        """
        asked = signed.message
        if isinstance(asked.question, Registration):
            if asked.question.party.name != asked.name:
                raise BadSignature(f"{asked.name!r} registers {asked.question.party.name!r}: a site registers itself")
            check_signature_of(signed, asked.question.party)
            return asked.question.party
        found = [one.party for one in self.register.known_as(asked.name)]
        if not found:
            raise UnknownParty(f"{asked.name!r} has not registered here: run 'moiety site join' first")
        for renewed in found[:-1]:
            with suppress(BadSignature):
                check_signature_of(signed, renewed)
                return renewed
        check_signature_of(signed, found[-1])
        return found[-1]

    def _answer(self, asked: Asked, asker: Party) -> Standing | Founded:
        end_renewals(self._settings, self.register)
        if isinstance(asked.question, Registration):
            return self._standing(self._registered(asked.question))
        known = next((one for one in self.register.known_as(asker.name) if one.party == asker), None)
        if known is None:
            raise UnknownParty(
                f"{asker.name!r} was withdrawn: ask the operator for another invitation; or it has other keys now: ask "
                "from the folder that you joined with them"
            )
        if isinstance(asked.question, Founding):
            return self._found(asked.question, known)
        if isinstance(asked.question, Changing):
            return self._changed(asked.question, known)
        if asked.question.claim is not None:
            known = self._claimed(known, asked.question.claim)
        return self._standing(known, asked.question.link)

    def _claimed(self, known: Registrant, claim: Signature) -> Registrant:
        """Keys that are in the roster need no word, and nobody who holds them has one in a renewal.

        Raises: BadSignature, UnknownParty, StorageFull
        """
        chain = newest_chain(self._settings)
        if chain is None or known.claim == claim or chain.head.party(known.party.name) == known.party:
            return known
        require_claim(Given(known.party, claim), chain.first_digest)
        return self.register.keep_claim(known.party, claim)

    def _registered(self, registration: Registration) -> Registrant:
        party = registration.party
        chain = newest_chain(self._settings)
        others = [one.party for one in (self.card, paired(self._settings)) if one is not None]
        others += [] if chain is None else [other for roster in chain.rosters for other in roster.parties]
        renewing = chain is not None and self.register.invites_renewal(registration.secret)
        for other in others:
            if other.name == party.name and other != party and not renewing:
                raise ConflictingMessage(f"the name {party.name!r} is taken in this federation: join under another")
            had = (other.signing_key, other.sealing_key)
            if renewing and other != party and (party.signing_key in had or party.sealing_key in had):
                raise ConflictingMessage("these keys were in the roster before: name another folder with --out")
        return self.register.register(registration)

    def _standing(self, known: Registrant, link: int = 0) -> Standing:
        shown = known.requester and known.admitted and link == 0
        chain = newest_chain(self._settings) if known.admitted else None
        return Standing(
            admitted=known.admitted,
            waits_for=self._waits_for_site(known),
            peer=paired(self._settings),
            registrants=self.register.registrants if shown else (),
            links=0 if chain is None else len(chain.digests),
            renews=self.register.renews(known.party),
            roster=None if chain is None or link else chain.first,
            change=chain.changes[link - 1] if chain is not None and 0 < link <= chain.number else None,
        )

    def _waits_for_site(self, known: Registrant) -> tuple[str, ...]:
        operator, name = self.card.party.name, known.party.name
        if not known.admitted:
            return (f"{operator} to admit {name}: read the fingerprint to its people over the phone",)
        chain = newest_chain(self._settings)
        if chain is None:
            return tuple(f"{operator}: {what}" for what in self.waits_for())
        held = chain.head.party(name)
        if held is None and name in chain.founding_keys:
            return (f"nothing: {name} was removed from the roster; a site that returns takes another name",)
        if held is None:
            return (f"the requester to add {name} to the roster ('moiety site add {name}')",)
        if held != known.party and self.register.renews(known.party):
            return (f"the requester to put the new keys of {name} into the roster ('moiety site add {name}')",)
        return ()

    def _changed(self, changing: Changing, known: Registrant) -> Founded:
        """This operator's signature, if its own people admitted whoever is added or has other keys, and let whoever is
        removed be removed.

        Raises: NotListed, WrongRound, RosterRefused, ConfigurationError, BadSignature, StorageFull
        """
        chain = newest_chain(self._settings)
        if chain is None:
            raise WrongRound("the federation is not founded yet: the requester runs 'moiety site found'")
        if not known.admitted or known.party.name != chain.head.requester:
            raise NotListed(f"{known.party.name!r} is not the requester, who alone proposes changes")
        if (changing.number, changing.change) == (chain.number, chain.head_digest):
            before = chain.up_to(chain.number - 1)
            return Founded(signature=self._own(before, chain.changes[-1].message), in_place=True)
        change = self._made(changing, chain)
        signed = Signed[RosterChange](message=change, signatures=changing.signatures)
        requester = signed.signature_of(known.party.name)
        asker = chain.head.party(known.party.name)
        if requester is None or asker is None:
            raise BadSignature("the requester signs the change before the operators do")
        check_signature(change, requester, asker)
        own = self._own(chain, change)
        if all(signed.signature_of(name) is not None for name in signers(chain.head)):
            put_in_place(self._settings, dump_chain(chain.extended_by(signed)), self.card.party.name)
            self.register.in_force(change.roster.sites)
            return Founded(signature=own, in_place=True)
        return Founded(signature=own, in_place=False)

    def _own(self, before: RosterChain, change: RosterChange) -> Signature:
        signed = signed_by(before, Signed[RosterChange](message=change), self._keys)
        return signed.signatures[0]

    def _made(self, changing: Changing, chain: RosterChain) -> RosterChange:
        """Return the change that this operator has itself admitted, and nothing else that it is told."""
        operator = self.card.party.name
        if changing.number != chain.number + 1:
            raise RosterRefused(
                f"change {chain.number} is the newest one at {operator}, so {changing.number} cannot follow: run the "
                "same command again"
            )
        sites = self.register.named(changing.sites, operator)
        given = tuple(Given(one.party, one.claim) for one in sites)
        agreed = self.register.removals
        for name in changing.remove:
            if name not in agreed:
                raise RosterRefused(f"{operator} keeps {name!r}: its people run 'moiety server remove {name}' first")
        change = proposed(chain, Wanted(given=given, remove=changing.remove), changing.reason)
        if change.digest() != changing.change:
            raise RosterRefused(
                f"{operator} makes another change of the same sites; nobody signs: compare 'moiety roster show' with "
                "both operators by phone"
            )
        return change

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
            put_in_place(self._settings, dump_roster(signed), self.card.party.name)
            self._on_founded()
            return Founded(signature=own, in_place=True)
        return Founded(signature=own, in_place=there is not None)

    def _roster_of(self, founding: Founding, requester: str) -> Roster:
        peer = paired(self._settings)
        if peer is None:
            raise ConfigurationError(f"{self.card.party.name} has not compared the other operator's card yet")
        sites = [one.party for one in self.register.named(founding.sites, self.card.party.name)]
        roster = first_roster((self.card, peer), requester, sites)
        if roster.digest() != founding.roster:
            raise RosterRefused(
                f"{self.card.party.name} makes another roster of the same sites: the operators' cards differ from "
                "those that the requester has; nobody signs: compare both operators' fingerprints by phone"
            )
        return roster


def check_signature_of(signed: Signed[Asked], asker: Party) -> None:
    """Before anything is said about the question. Raises: BadSignature"""
    found = signed.signature_of(asker.name)
    if found is None:
        raise BadSignature(f"the question is not signed by {asker.name!r}")
    check_signature(signed.message, found, asker)


def _complete(signed: Signed[Roster]) -> bool:
    try:
        require_roster(signed)
    except BadSignature:
        if len(signed.signatures) < 3:  # both operators and the requester
            return False
        raise
    return True
