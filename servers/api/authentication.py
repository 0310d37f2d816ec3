"""Authenticate the caller, and find what the address names: the dependencies of routes (docs/protocol.md 3, 14)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final

from fastapi import Depends, Path, Request
from starlette.types import Scope

from host import log
from protocol.channel.keys import VerifyKey
from protocol.channel.message import MOST_ROUNDS
from protocol.channel.signing import VerifiedRequest, require_own_version, verify_request
from protocol.errors import BadSignature, NotListed
from protocol.messages.control import Party
from protocol.parameters import PROTOCOL_VERSION, first_release
from protocol.rounds.states import RoundKey
from servers.api.admission import VISIT, Visit
from servers.rounds.intake import Caller
from servers.server import Server
from servers.store.records import StudyRecord
from servers.studies import going_study

ENCLOSED: Final = "moiety.caller"
"""The key of an enclosed request's scope under which its caller stands."""


_log = log.logger("authentication")
_HALF_A_SECOND: Final = 0.5
"""A signature's time is in whole seconds."""


async def server_of(request: Request) -> Server:
    server: Server = request.app.state.server
    return server


ThisServer = Annotated[Server, Depends(server_of)]


def signer_of(scope: Scope, server: Server) -> tuple[Party, VerifiedRequest]:
    """Return an envelope's signer, once the signature has been verified and its nonce stored.

    Raises: BadSignature, OtherVersion
    """
    query = scope["query_string"].decode("latin-1")
    url = server.settings.public_url + scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
    headers = [(key.decode("latin-1"), value.decode("latin-1")) for key, value in scope["headers"]]
    now = server.clock()
    verified = verify_request(scope["method"], url, headers, partial(_key_of, server), int(now))
    server.store.remember_nonce(verified.key_id, verified.nonce, now)
    note_authenticated(scope)
    party = server.parties[verified.key_id]
    note_heard(server, party, verified.created)
    return party, verified


def note_heard(server: Server, party: Party, created: int) -> None:
    """A request of this party came, in an envelope or a session; ``created``: when, by its own clock, unix seconds."""
    now = server.clock()
    if server.is_peer(party):
        server.recent.peer.saw(now, created + _HALF_A_SECOND)
    elif party.name == server.roster.requester:
        server.recent.requester_at_s = now


def note_authenticated(scope: Scope) -> None:
    """The request under way is a party's, and costs a stranger's allowance nothing."""
    visit: Visit | None = scope.get(VISIT)  # none in a test without a socket
    if visit is not None:
        visit.authenticated()


def _key_of(server: Server, key_id: str) -> VerifyKey | None:
    """None also for a key that is in the roster no more: the answer is a stranger's, the operator's log says whose."""
    former = server.former_keys.get(key_id)
    if former is not None and key_id not in server.former_keys_seen:
        server.former_keys_seen.add(key_id)
        _log.info("former_key", party=former, key=key_id, change=server.chain.number)
    return server.verify_keys.get(key_id)


async def authenticated(request: Request) -> Caller:
    """The party whose envelope this request came in (servers/api/envelope.py); what came in none is not looked at.

    Raises: BadSignature, OtherVersion
    """
    enclosed = request.scope.get(ENCLOSED)
    if isinstance(enclosed, Caller):
        return enclosed
    require_own_version(list(request.headers.items()))
    raise BadSignature(
        "the request is in no envelope, and a signature outside of one counts for nothing; install release "
        f"{first_release(PROTOCOL_VERSION)} of the moiety package or a later one of {PROTOCOL_VERSION}, which encloses "
        "its requests"
    )


async def site(caller: Annotated[Caller, Depends(authenticated)], server: ThisServer) -> Caller:
    """A site of the roster, not an operator. Raises: RolledBack, too"""
    server.history.require_current()
    if not server.is_site(caller.party):
        raise NotListed(f"{caller.name!r} is an operator; this is for sites")
    return caller


async def requester(caller: Annotated[Caller, Depends(site)], server: ThisServer) -> Caller:
    """The roster's requester."""
    if caller.name != server.roster.requester:
        raise NotListed(f"only the requester {server.roster.requester!r} may do this, not {caller.name!r}")
    return caller


async def stranger_peer(caller: Annotated[Caller, Depends(authenticated)], server: ThisServer) -> Caller:
    """The other server's operator, with which this one has compared nothing yet."""
    if not server.is_peer(caller.party):
        raise NotListed(f"only the other server's operator {server.peer.name!r} may do this, not {caller.name!r}")
    return caller


async def peer(caller: Annotated[Caller, Depends(stranger_peer)], server: ThisServer) -> Caller:
    """The other server's operator, once both know that neither has forgotten anything. Raises: HistoryUnknown, too"""
    server.history.require_compared()
    return caller


AnySite = Annotated[Caller, Depends(site)]
TheRequester = Annotated[Caller, Depends(requester)]
ThePeer = Annotated[Caller, Depends(peer)]
StrangerPeer = Annotated[Caller, Depends(stranger_peer)]


LARGEST: Final = 2**53
"""The most that a count can be which grows while a server lives: JSON's readers keep it exactly."""
Round = Annotated[int, Path(ge=1, le=MOST_ROUNDS)]
Attempt = Annotated[int, Path(ge=1, le=MOST_ROUNDS)]


@dataclass(frozen=True)
class Addressed:
    """The attempt of a round that an address names, and its study.

    Both are read anew at each look, and refused once the study goes on no longer: while a body comes, the other
    server's older database may be put back. Raises: UnknownStudy, RolledBack, WrongRound
    """

    server: Server
    name: str
    round: int
    attempt: int

    @property
    def study(self) -> StudyRecord:
        return going_study(self.server, self.name)

    @property
    def key(self) -> RoundKey:
        return RoundKey(self.study.digest, self.round, self.attempt)


async def addressed(study: str, round: Round, attempt: Attempt, server: ThisServer) -> Addressed:
    """Comes behind the caller in a route, so that nobody else learns which studies there are.

    Refuses, before a body is read, a study that does not go on. Raises: UnknownStudy, RolledBack, WrongRound
    """
    at = Addressed(server, study, round, attempt)
    going_study(server, study)
    return at


AtAttempt = Annotated[Addressed, Depends(addressed)]
