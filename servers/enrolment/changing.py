"""A change of the roster's sites: made anew and signed by one operator, in place once all have signed."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.errors import BadSignature, NotListed, RosterRefused, WrongRound
from protocol.messages.control import Signature, Signed, check_signature
from protocol.messages.roster import RosterChange
from protocol.roster.chain import RosterChain, signers
from protocol.roster.changes import Given, Wanted, dump_chain, proposed, signed_by
from protocol.roster.enrolment import Changing, Founded, OperatorCard, Registrant
from protocol.roster.keyfile import PartyKeys
from servers.enrolment.place import chain_in_place, put_in_place
from servers.enrolment.register import Register
from servers.settings import ServerSettings


@dataclass(frozen=True)
class Changes:
    """One operator's."""

    settings: ServerSettings
    card: OperatorCard
    keys: PartyKeys = field(repr=False)
    register: Register

    def sign(self, changing: Changing, known: Registrant) -> Founded:
        """This operator's signature, if its own people admitted whoever is added or has other keys, and let whoever is
        removed be removed.

        Raises: NotListed, WrongRound, RosterRefused, ConfigurationError, BadSignature, StorageFull
        """
        chain = chain_in_place(self.settings)
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
            put_in_place(self.settings, dump_chain(chain.extended_by(signed)), self.card.party.name)
            self.register.in_force(change.roster.sites)
            return Founded(signature=own, in_place=True)
        return Founded(signature=own, in_place=False)

    def _own(self, before: RosterChain, change: RosterChange) -> Signature:
        signed = signed_by(before, Signed[RosterChange](message=change), self.keys)
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
