"""The roster's chain as this site holds it: longer while the agent runs, kept in the state folder for good."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from client_agent.network.server_client import ServerClient
from host.files import write_durably
from protocol.errors import AnnouncementMismatch, BadSignature, MoietyError
from protocol.messages.control import Announcement, Roster, Signed, Study, require_signatures
from protocol.roster.chain import RosterChain, require_same_servers
from protocol.roster.changes import dump_chain
from protocol.sharing import Side

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
