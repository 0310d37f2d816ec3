"""Two operators' desks in this process, with the folders that their commands made, and sites that ask them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import pytest

from client_agent.site import founding
from client_agent.site.enrolment import Asking, Together, join, look
from client_agent.site.enrolment_folder import Joined, Wanted
from protocol.errors import MoietyError, StorageFull
from protocol.messages.control import Party, Roster, Signature
from protocol.messages.paths import CARD
from protocol.roster.chain import RosterChain, parse_chain, require_chain
from protocol.roster.enrolment import Invitation, dump_card, fingerprint_of
from protocol.sharing import Side
from servers.enrolment import register
from servers.enrolment.desk import Desk
from servers.enrolment.folder import NewServer, make_folder
from servers.enrolment.pairing import pair
from servers.problems import problem_body, status_of
from servers.settings import ServerSettings, load_settings

BEGIN_S = 1_800_000_000.0
HOUR_S = 3600.0


@contextmanager
def full_disk(place: Path, writes: str = "rewrite") -> Iterator[None]:
    """The register finds no room for that file."""
    real = getattr(register, writes)

    def full(path: Path, data: Any) -> None:
        if path == place:
            raise StorageFull(f"no space left for {path.name}: free space on this machine's disk")
        real(path, data)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(register, writes, full)
        yield


class Shown(BaseHTTPRequestHandler):
    """Answers every request with the same bytes, and notes what it was."""

    def do_GET(self) -> None:
        self.asked.append(self.requestline)
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        with suppress(OSError):  # who asked may have read enough
            self.wfile.write(self.body)

    do_POST = do_GET
    body = b""
    asked: ClassVar[list[str]] = []

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_s = BEGIN_S

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Operators:
    """Sides a and b of one federation; ``on_the_way`` sees and may change what passes."""

    folder: Path
    clock: Clock
    settings: dict[Side, ServerSettings]
    desks: dict[Side, Desk]
    on_the_way: Callable[[str, bytes], bytes] = lambda _, body: body
    seen: list[tuple[str, bytes]] = field(default_factory=list)
    requester: Joined = field(init=False)

    def send(self, url: str, path: str, body: bytes, most_bytes: int) -> tuple[int, bytes]:
        """As the network would, without one."""
        desk = next(desk for desk in self.desks.values() if desk.card.url == url)
        if path == CARD:
            return 200, self.on_the_way("card", dump_card(desk.card).encode())
        self.seen.append((url, body))
        try:
            answer = desk.answer(self.on_the_way("question", body))
        except MoietyError as refused:
            return status_of(refused.code), problem_body(refused.code, refused.detail)
        assert len(answer) <= most_bytes
        return 200, self.on_the_way("answer", answer)

    def invite(self, site: str, *, requester: bool = False, ttl_s: float = HOUR_S) -> tuple[Invitation, Invitation]:
        a, b = (
            self.desks[side].register.invite(self.desks[side].card, site, ttl_s, requester=requester) for side in Side
        )
        return a, b

    def join(self, site: str, *, requester: bool = False, samples: int = 100) -> Joined:
        return self.joined(self.invite(site, requester=requester), samples=samples)

    def joined(self, pair_of: tuple[Invitation, Invitation], *, samples: int = 100, folder: str = "") -> Joined:
        out = self.folder / (folder or pair_of[0].site)
        return join(pair_of, Wanted(samples, self.folder / "data"), out, self.send, self.clock)

    def register_file(self, side: Side) -> Path:
        return self.settings[side].data_dir / "enrolment.json"

    def swap(self, side: Side, swapped: Party, claim: Signature | None = None) -> None:
        """That operator puts a card of its own in the place of a site's."""
        path = self.register_file(side)
        kept = json.loads(path.read_text())
        for one in kept["registrants"]:
            if one["party"]["name"] == swapped.name:
                one["party"] = swapped.model_dump(mode="json")
                one["claim"] = claim and claim.model_dump(mode="json")
        path.write_text(json.dumps(kept))

    def admit(self, site: Joined, *sides: Side) -> None:
        for side in sides or tuple(Side):
            self.desks[side].register.admit(site.party.name, fingerprint_of(site.party))

    def look(self, site: Joined) -> Together:
        return look(site, self.send, self.clock)

    def admit_at(self, requester: Joined, site: Joined) -> None:
        founding.admit(requester, self.look(requester), site.party.name, fingerprint_of(site.party))

    def late(self, name: str) -> Joined:
        """A site that joined, was compared by all three, and gave its word for its keys."""
        site = self.join(name)
        self.admit(site)
        self.admit_at(self.requester, site)
        self.look(site)
        return site

    def found(self, requester: Joined, without: tuple[str, ...] = ()) -> Roster:
        return founding.found(requester, self.send, without, self.clock).message

    def add(self, *names: str) -> RosterChain:
        return founding.add(self.requester, names, "they joined", self.send, self.clock)

    def remove(self, *names: str) -> RosterChain:
        return founding.remove(self.requester, names, "it leaves", self.send, self.clock)

    def asking(self, site: Joined, side: Side) -> Asking:
        return Asking(self.desks[side].card, site.keys, site.party, self.send, self.clock)

    def chain(self, side: Side) -> RosterChain:
        path = self.settings[side].roster
        return require_chain(parse_chain(path.read_text(), str(path)))

    def ready_to_found(self) -> tuple[Joined, Joined]:
        """The requester and one site, admitted by everybody."""
        requester, site = self.join("requester", requester=True), self.join("clinic-1")
        for one in (requester, site):
            self.admit(one)
        self.admit_at(requester, site)
        self.requester = requester
        return requester, site


def operators(folder: Path, federation: str = "clinics", *, paired: bool = True) -> Operators:
    """Two folders as 'moiety server init' and 'pair' leave them."""
    clock = Clock()
    settings = {}
    cards = {}
    for side in Side:
        name, url = f"operator-{side.value}", f"https://{side.value}.example:8443"
        new = NewServer(side=side, federation=federation, operator=name, url=url, port=8443, own_ca=True)
        cards[side] = make_folder(new, folder / side.value)
        settings[side] = load_settings(folder / side.value / "settings.toml")
    for side in Side if paired else ():
        pair(settings[side], cards[side.other], fingerprint_of(cards[side.other]))
    return Operators(folder, clock, settings, {side: Desk(settings[side], clock) for side in Side})
