"""An operator's register of enrolment: its invitations, without their secrets, and who registered by them.

One file in the data folder, written whole, under a lock: commands and the running server change it beside each other.
"""

from __future__ import annotations

import fcntl
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from host.files import private_folder, write_durably
from host.frozen import Frozen
from host.output_files import rewrite
from protocol.errors import (
    BadSignature,
    ConfigurationError,
    ConflictingMessage,
    RosterRefused,
    StorageFull,
    UnknownParty,
)
from protocol.messages.control import Party, PartyName, Role, Roster, Signature, Signed, require_roster
from protocol.roster.enrolment import (
    MOST_SITES,
    Invitation,
    NamedSite,
    OperatorCard,
    Registrant,
    Registration,
    invitation_id,
    require_fingerprint,
)
from servers.identity.roster import newest_chain
from servers.settings import ServerSettings

_FILE: Final = "enrolment.json"
_LOCK: Final = "enrolment.lock"
_SECRET_BYTES: Final = 32
_MOST_INVITATIONS: Final = 1000
_INVITE_AGAIN: Final = "ask the operator for another invitation, and run the same command with it"


class Invited(Frozen):
    """An invitation; ``used_by`` is the digest of the public card that registered by it. ``renews``: for other keys of
    a site in the roster."""

    id: str
    site: PartyName
    requester: bool
    expires_at_s: int
    used_by: str | None = None
    renews: bool = False

    def standing(self, now_s: float) -> str:
        """In a word, for people."""
        if self.used_by is not None:
            return "used"
        return "expired" if now_s >= self.expires_at_s else "open"


class _Kept(Frozen):
    invitations: tuple[Invited, ...] = ()
    registrants: tuple[Registrant, ...] = ()
    renewals: tuple[Registrant, ...] = ()
    removals: tuple[str, ...] = ()


@dataclass(frozen=True)
class Register:
    """In the server's data folder; ``clock`` gives Unix seconds."""

    folder: Path
    clock: Callable[[], float]

    @property
    def invitations(self) -> tuple[Invited, ...]:
        return self._read().invitations

    @property
    def registrants(self) -> tuple[Registrant, ...]:
        """Everybody once, with the keys that it renews to where it does."""
        kept = self._read()
        renewed = {one.party.name: one for one in kept.renewals}
        first = tuple(renewed.pop(one.party.name, one) for one in kept.registrants)
        return (*first, *renewed.values())

    @property
    def renewals(self) -> tuple[Registrant, ...]:
        """Sites with the keys that they renew to, which were not in the roster when this was last looked at."""
        return self._read().renewals

    @property
    def removals(self) -> tuple[str, ...]:
        """Whom this operator's people let the requester remove from the roster."""
        return self._read().removals

    def registrant(self, name: str) -> Registrant | None:
        return next((one for one in self.registrants if one.party.name == name), None)

    def known_as(self, name: str) -> tuple[Registrant, ...]:
        """A site as it may sign: with the keys that it renews to, and with those that it registered first."""
        kept = self._read()
        return tuple(one for one in (*kept.renewals, *kept.registrants) if one.party.name == name)

    def invites_renewal(self, secret: str) -> bool:
        """Return whether the invitation with this secret is to renew the keys of a site in the roster."""
        return any(one.renews for one in self._read().invitations if one.id == invitation_id(secret))

    def renews(self, party: Party) -> bool:
        """Return whether this card came by an invitation to renew keys, and is not in force yet."""
        return any(one.party == party for one in self._read().renewals)

    def invite(
        self, card: OperatorCard, site: str, ttl_s: float, *, requester: bool, renews: bool = False
    ) -> Invitation:
        """A new invitation, whose secret is kept nowhere. Raises: ConfigurationError, StorageFull"""
        secret = secrets.token_hex(_SECRET_BYTES)
        until = int(self.clock() + ttl_s)
        try:
            invitation = Invitation(
                federation=card.federation,
                side=card.side,
                operator=card.party.name,
                url=card.url,
                card=card.digest(),
                site=site,
                requester=requester,
                expires_at_s=until,
                secret=secret,
            )
        except ValidationError:
            raise ConfigurationError(f"{site!r} is no name: lower-case letters, digits, '-'") from None
        with self._changing() as kept:
            if not renews:
                _require_free(kept, site, requester=requester)
            invited = Invited(
                id=invitation_id(secret), site=site, requester=requester, expires_at_s=until, renews=renews
            )
            stay = tuple(one for one in kept.invitations if one.used_by or one.standing(self.clock()) == "open")
            if len(stay) >= _MOST_INVITATIONS:
                raise ConfigurationError(
                    f"{len(stay)} invitations are open: withdraw some ('moiety server invite NAME --withdraw')"
                )
            self._write(kept.model_copy(update={"invitations": (*stay, invited)}))
        return invitation

    def withdraw(self, site: str, named: tuple[str, ...]) -> str:
        """All invitations of ``site``, and its registration; of those in the roster, ``named``, what renews their keys.

        Returns: what was withdrawn, in words. Raises: ConfigurationError
        """
        with self._changing() as kept:
            invitations = tuple(
                one for one in kept.invitations if one.site != site or (site in named and not one.renews)
            )
            registrants = tuple(one for one in kept.registrants if one.party.name != site or site in named)
            renewals = tuple(one for one in kept.renewals if one.party.name != site)
            before, after = (*kept.registrants, *kept.renewals), (*registrants, *renewals)
            gone = len(kept.invitations) - len(invitations), len(before) - len(after)
            if not any(gone) and site in named:
                raise ConfigurationError(f"{site!r} is in the roster: 'moiety server remove {site}' lets it be removed")
            if not any(gone):
                raise ConfigurationError(f"{site!r} has no invitation here and did not register: see the list")
            changes = {"invitations": invitations, "registrants": registrants, "renewals": renewals}
            self._write(kept.model_copy(update=changes))
        return f"{gone[0]} invitations and {gone[1]} registrations"

    def let_remove(self, site: str, *, undo: bool = False) -> None:
        """The requester may remove the site from the roster; ``undo``: it may not. Repeating changes nothing."""
        with self._changing() as kept:
            others = tuple(name for name in kept.removals if name != site)
            self._write(kept.model_copy(update={"removals": others if undo else (*others, site)}))

    def in_force(self, parties: Sequence[Party]) -> None:
        """These cards are in the roster: who renewed its keys to one of them is known by it alone from now on."""
        with self._changing() as kept:
            done = {one.party.name: one for one in kept.renewals if one.party in parties}
            if done:
                registrants = tuple(one for one in kept.registrants if one.party.name not in done)
                renewals = tuple(one for one in kept.renewals if one.party.name not in done)
                changes = {"registrants": (*registrants, *done.values()), "renewals": renewals}
                self._write(kept.model_copy(update=changes))

    def register(self, registration: Registration) -> Registrant:
        """Take a site in whose question is authentic; the same one again changes nothing.

        Raises: BadSignature, ConflictingMessage, StorageFull
        """
        party = registration.party
        with self._changing() as kept:
            invited = next((one for one in kept.invitations if one.id == invitation_id(registration.secret)), None)
            if invited is None:
                raise BadSignature(f"this invitation was withdrawn, or is not this operator's: {_INVITE_AGAIN}")
            into = "renewals" if invited.renews else "registrants"
            there: tuple[Registrant, ...] = getattr(kept, into)
            known = next((one for one in (*there, *kept.registrants) if one.party == party), None)
            if invited.used_by == party.digest() and known is not None:
                return known
            self._require_usable(invited, party)
            _require_newcomer(kept, party, renews=invited.renews)
            used = invited.model_copy(update={"used_by": party.digest()})
            new = Registrant(party=party, requester=invited.requester, admitted=False)
            invitations = tuple(used if one.id == used.id else one for one in kept.invitations)
            self._write(kept.model_copy(update={"invitations": invitations, into: (*there, new)}))
        return new

    def admit(self, name: str, fingerprint: str) -> Registrant:
        """Its fingerprint was read over the phone. Raises: ConfigurationError; then nothing changed"""
        with self._changing() as kept:
            known = next((one for one in (*kept.renewals, *kept.registrants) if one.party.name == name), None)
            if known is None:
                raise ConfigurationError(f"{name!r} has not registered here: it runs 'moiety site join' first")
            require_fingerprint(fingerprint, known.party, name)
            admitted = known.model_copy(update={"admitted": True})
            self._write(_with(kept, admitted))
        return admitted

    def keep_claim(self, party: Party, claim: Signature) -> Registrant:
        """The site's word for these keys of it, which was checked; what it said for others stays.

        Raises: UnknownParty, if it was withdrawn meanwhile; ConfigurationError, StorageFull
        """
        with self._changing() as kept:
            known = next((one for one in (*kept.renewals, *kept.registrants) if one.party == party), None)
            if known is None:
                raise UnknownParty(f"{party.name!r} was withdrawn: ask the operator for another invitation")
            claimed = known.model_copy(update={"claim": claim})
            self._write(_with(kept, claimed))
        return claimed

    def named(self, sites: Sequence[NamedSite], operator: str) -> tuple[Registrant, ...]:
        """These sites, if each was admitted here under the public card that is named. Raises: RosterRefused"""
        admitted = {one.party.name: one for one in self.registrants if one.admitted}
        for named in sites:
            known = admitted.get(named.name)
            if known is None:
                raise RosterRefused(f"{operator} has not admitted {named.name!r}")
            if known.party.digest() != named.party:
                raise RosterRefused(
                    f"{operator} admitted {named.name!r} under another public card than the one proposed: somebody put "
                    "another key in its place; nobody signs: compare its fingerprint with both operators"
                )
        return tuple(admitted[named.name] for named in sites)

    def _require_usable(self, invited: Invited, party: Party) -> None:
        if invited.used_by is not None:
            raise ConflictingMessage(
                "this invitation was used before, by another public card: if that was not you, somebody else had it: "
                f"tell the operator by phone, who withdraws it; then {_INVITE_AGAIN}"
            )
        if self.clock() >= invited.expires_at_s:
            raise BadSignature(f"this invitation has expired: {_INVITE_AGAIN}")
        if party.name != invited.site or party.role is not Role.SITE or party.samples is None or party.url is not None:
            raise BadSignature(f"this invitation is for a site called {invited.site!r} and nobody else")

    def _read(self) -> _Kept:
        path = self.folder / _FILE
        try:
            return _Kept.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return _Kept()
        except (OSError, ValidationError):
            raise ConfigurationError(f"{path} cannot be read: restore it from a backup of the data folder") from None

    def _write(self, kept: _Kept) -> None:
        write_durably(self.folder / _FILE, kept.model_dump_json().encode() + b"\n")

    @contextmanager
    def _changing(self) -> Iterator[_Kept]:
        """Nobody else changes the file meanwhile."""
        private_folder(self.folder)
        with (self.folder / _LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self._read()


def _with(kept: _Kept, changed: Registrant) -> _Kept:

    def of(known: tuple[Registrant, ...]) -> tuple[Registrant, ...]:
        return tuple(changed if one.party == changed.party else one for one in known)

    return kept.model_copy(update={"registrants": of(kept.registrants), "renewals": of(kept.renewals)})


def _require_free(kept: _Kept, site: str, *, requester: bool) -> None:
    if any(one.party.name == site for one in kept.registrants):
        raise ConfigurationError(
            f"{site!r} has registered here already: name the new one otherwise; if it lost its keys before it was in "
            f"the roster, 'moiety server invite {site} --withdraw' first"
        )
    other = next((one.party.name for one in kept.registrants if one.requester), None)
    if requester and other is not None:
        raise ConfigurationError(f"{other!r} has registered as the requester; a federation has one: withdraw it first")


def _require_newcomer(kept: _Kept, party: Party, *, renews: bool) -> None:
    for one in (*kept.registrants, *kept.renewals):
        if one.party.name == party.name and not (renews and one in kept.registrants):
            raise ConflictingMessage(
                f"the name {party.name!r} is taken here, by another public card: join from the folder that you joined "
                "from first; if its keys are lost, ask the operator to withdraw that registration"
            )
        if {one.party.signing_key, one.party.sealing_key} & {party.signing_key, party.sealing_key}:
            raise ConflictingMessage("another site has registered with these keys: every site makes its own")
    if len(kept.registrants) >= MOST_SITES:
        raise ConflictingMessage(f"{MOST_SITES} sites have registered here, more than a server takes")


def first_in_place(settings: ServerSettings) -> Signed[Roster] | None:
    """The first roster that this server has, complete. Raises: ConfigurationError, BadSignature"""
    chain = newest_chain(settings)
    if chain is None:
        return None
    require_roster(chain.first)
    return chain.first


def names_in_place(settings: ServerSettings) -> tuple[str, ...]:
    """Everybody who is or was in the roster here. Raises: ConfigurationError"""
    chain = newest_chain(settings)
    return () if chain is None else tuple(chain.founding_keys)


def put_in_place(settings: ServerSettings, text: str, operator: str) -> None:
    """Raises: ConfigurationError, StorageFull; what was there before stays"""
    try:
        private_folder(settings.roster.parent)
        rewrite(settings.roster, text)
    except StorageFull:  # others read these words, and learn no path of this machine from them
        raise StorageFull(f"no space left for {settings.roster.name}: free space on this machine's disk") from None
    except ConfigurationError:
        raise ConfigurationError(f"{operator} cannot write its roster: its operator looks at key 'roster'") from None


def end_renewals(settings: ServerSettings, register: Register) -> None:
    """Have whoever renewed its keys known by those in the roster alone, however that came to be in place: by a file,
    or just before this process ended. Raises: ConfigurationError, StorageFull
    """
    if not register.renewals:
        return
    chain = newest_chain(settings)
    if chain is not None:
        register.in_force(chain.head.sites)
