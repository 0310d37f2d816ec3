"""This site's identity, the roster's chain and its keys, and the files of what those keys remember."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from pydantic import BaseModel, ValidationError

from client_agent.settings import AgentSettings
from host.files import read_secret, write_durably
from host.network import require_apart
from host.settings import read_text
from protocol.errors import AnnouncementMismatch, BadSignature, ConfigurationError, MoietyError
from protocol.messages.control import Announcement, Roster, Signed, Study, require_signatures
from protocol.roster.chain import (
    RosterChain,
    dump_chain,
    parse_chain,
    require_chain,
    require_extension,
    require_same_servers,
)
from protocol.roster.keyfile import PartyKeys, parse_party_keys
from protocol.sharing import Side

if TYPE_CHECKING:
    from client_agent.net.server_client import ServerClient

ACCEPTED: Final = "accepted_roster.toml"


class HeldRoster:
    """All studies of one agent go by it; a link is taken once it was checked, and is kept before it counts.

    Threads of several studies may call ``catch_up`` at the same time.
    """

    def __init__(
        self,
        chain: RosterChain,
        state_dir: Path | None = None,
        said: Callable[[RosterChain], None] = lambda _: None,
        undisturbed: Callable[[], bool] = lambda: False,
    ) -> None:
        """``state_dir``: where it is kept, None where it need not last; ``said`` hears of every newer chain.

        ``undisturbed``: whether no study is under way here: then operators and the requester may have other keys.
        """
        self._undisturbed = undisturbed
        self._chain = chain
        self._kept = None if state_dir is None else state_dir / ACCEPTED
        self._said = said
        self._one = threading.Lock()

    @property
    def chain(self) -> RosterChain:
        return self._chain

    @property
    def head(self) -> Roster:
        return self._chain.head

    def of(self, announcement: Announcement) -> Roster:
        """The roster that a round runs under. Raises: RosterUnknown, for a link that this site does not hold"""
        return self._chain.roster_under(announcement.roster_head)

    def require_signed(self, signed: Signed[Study], side: Side) -> Study:
        """A study, signed by the requester and an operator with the keys of one link; the newest is tried first.

        Raises: BadSignature
        """
        for roster in reversed(self._chain.rosters[1:]):
            with suppress(BadSignature):
                return require_signatures(signed, roster, (roster.requester, roster.operator(side).name))
        first = self._chain.rosters[0]
        return require_signatures(signed, first, (first.requester, first.operator(side).name))

    def require_pinned(self, study: Study) -> None:
        """A study belongs to the federation that this site is in. Raises: AnnouncementMismatch"""
        if study.roster_digest != self._chain.first_digest:
            raise AnnouncementMismatch(f"study {study.name!r} pins another roster than this site's begins with")

    def name_of(self, site: str) -> str:
        """Return the name of a site across studies and changes of its keys: the signing key that it came with.

        Requires: the site is or was in the roster
        """
        return self._chain.founding_keys[site]

    def fork_shown(self, clients: Mapping[Side, ServerClient]) -> str:
        """Return what each server shows in place of the newest change held here, where one shows another; else nothing.
        When a site meets a link it does not know, its people must learn who was shown what.
        """
        held = self._chain
        shown = {side: _shown(client, held.number) for side, client in clients.items()}
        if not held.number or all(digest in (None, held.head_digest) for digest in shown.values()):
            return ""
        said = "; ".join(
            f"{clients[side].operator.name} shows {(digest or 'none')[:16]}" for side, digest in shown.items()
        )
        return (
            f"the roster is a fork: change {held.number} is {held.head_digest[:16]} here; {said}. Somebody signed two "
            "changes after the same link: compare 'moiety roster show' with both operators and the requester by phone"
        )

    def catch_up(self, number: int, client: ServerClient) -> None:
        """Fetch the links up to change ``number`` from a server, one after the other.

        Raises: RosterRefused, BadSignature, for a link that does not continue what this site holds: nothing is taken
                of it; UnknownResource, Unavailable
        """
        if number <= self._chain.number:
            return
        with self._one:
            while self._chain.number < number:
                held = self._chain
                longer = held.extended_by(client.roster_change(held.number + 1))
                if not self._undisturbed():
                    require_same_servers(longer, held)
                if self._kept is not None:
                    write_durably(self._kept, dump_chain(longer).encode())
                self._chain = longer
                self._said(longer)


def _shown(client: ServerClient, number: int) -> str | None:
    """The digest of a server's link; None where it shows none, or cannot be asked."""
    try:
        return client.roster_change(number).message.digest()
    except MoietyError:
        return None


def load_identity(settings: AgentSettings) -> tuple[Roster, str]:
    """The newest roster, and the signing key that this site came with, which names its memories.

    Raises: as ``load_chain``
    """
    chain, _ = load_chain(settings)
    return chain.head, chain.founding_keys[settings.site]


def load_chain(settings: AgentSettings) -> tuple[RosterChain, PartyKeys]:
    """The roster's chain, as long as this site knows it, and this site's keys, which must belong to its head.

    Raises: ConfigurationError; BadSignature when the roster lacks a signature
    """
    chain = _newest(signed_chain(settings.roster), settings)
    roster = chain.head
    keys = parse_party_keys(read_secret(settings.keys), str(settings.keys))
    require_apart((roster.operator_a.url or "", roster.operator_b.url or ""))
    party = roster.party(settings.site)
    if party is None or settings.site not in {site.name for site in roster.sites}:
        names = ", ".join(site.name for site in roster.sites)
        raise ConfigurationError(f"key 'site': found {settings.site!r}; the roster has the sites {names}")
    if keys.name != settings.site or keys.party(samples=party.samples) != party:
        raise ConfigurationError(
            f"key 'keys': {settings.keys} holds the keys of {keys.name!r}, "
            f"not those that the roster has for {settings.site!r}"
        )
    return chain, keys


def signed_chain(path: Path) -> RosterChain:
    """The chain, every link signed by both operators and the requester; BadSignature names the file and what to do.

    Raises: ConfigurationError, BadSignature, RosterRefused
    """
    chain = parse_chain(read_text(path), str(path))
    try:
        return require_chain(chain)
    except BadSignature as wrong:
        how = "take the one that is signed by all from both operators: moiety site status --config SETTINGS.TOML"
        if chain.changes and not _lacking(chain.first):
            how = f"ask whoever has not signed the last change to run: moiety roster sign {path.name} --key SECRET.TOML"
        raise BadSignature(f"{path}: {wrong.detail}; {how}") from None


def _lacking(first: Signed[Roster]) -> bool:
    roster = first.message
    needed = (roster.operator_a.name, roster.operator_b.name, roster.requester)
    return any(first.signature_of(name) is None for name in needed)


def _newest(found: RosterChain, settings: AgentSettings) -> RosterChain:
    """The file's chain, or the longer one that the agent has fetched; a file of another federation begins anew.

    Raises: ConfigurationError, for a fork
    """
    kept = settings.state_dir / ACCEPTED
    if not kept.exists():
        return found
    fetched = signed_chain(kept)
    if fetched.is_extension_of(found) or fetched.first_digest != found.first_digest:
        return fetched if fetched.is_extension_of(found) else found
    try:
        return require_extension(found, fetched)
    except MoietyError as wrong:
        raise ConfigurationError(f"{settings.roster}: {wrong.detail}; this agent has fetched {kept}") from None


R = TypeVar("R", bound=BaseModel)
SECRET_BYTES: Final = 32
_KEY_CHARACTERS: Final = 32


def folder_of_key(state_dir: Path, memory: str, came_with: str) -> Path:
    """Return the folder of a memory, whatever the site is called and however often its keys were renewed since.

    ``came_with``: the signing key that it first had in the roster's chain, in hexadecimal digits.
    """
    return state_dir / memory / came_with[:_KEY_CHARACTERS]


def drawn_once(path: Path, draw: Callable[[], bytes], used: Callable[[], bool], otherwise: str) -> bytes:
    """The 32 bytes at ``path``, drawn and written the first time they are asked for.

    ``used``: whether something that is kept was made with them, so that others must not take their place;
    ``otherwise`` says what would happen. Call it under the memory's lock.

    Raises: ConfigurationError when they are gone although used, or were cut short
    """
    if not path.exists():
        if used():
            raise ConfigurationError(f"{path} is missing, and {otherwise}; restore it from a backup of the same folder")
        write_durably(path, draw())
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise ConfigurationError(f"{path} holds {len(secret)} bytes, {SECRET_BYTES} were written; restore it")
    return secret


def read_remembered(path: Path, kind: type[R], memory: str) -> R:
    """A file of the ``memory``. Raises: ConfigurationError when it is not what was written"""
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ConfigurationError(
            f"{path}: not a file of this site's memory of {memory} ({error.error_count()} fields are wrong); restore "
            "it from a backup of the same folder"
        ) from None
