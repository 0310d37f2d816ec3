"""Messages that servers refuse: one that breaks a rule, at the point of a real round where it would count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import numpy as np

from harness.adversaries import contributions as forged
from harness.adversaries import requester as malicious
from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.scripted.rounds import (
    EARLY,
    OTHER,
    REQUESTER,
    SITES,
    STRANGER,
    VICTIM,
    OpenRound,
    Pair,
    Phase,
)
from harness.adversaries.scripted.there import there
from harness.federation.memory.servers import ServersInMemory
from protocol.bodies.letter import NOTICE_BYTES
from protocol.parameters import Needs
from protocol.rounds.side_b import Reply
from protocol.sharing import Side
from protocol.wire import paths
from protocol.wire.authentic import sign
from protocol.wire.channel.sealing import sealed_small_length
from protocol.wire.messages import ContributionHeader, Receipt, Signed
from servers.http.bodies import _Opening
from servers.store.interface import ContributionRecord

Round = OpenRound[ServersInMemory]


def _plenty(*_: object) -> int:
    return 2**24


Act = Callable[[Round], list[httpx.Response]]
_FINISH = "servers.http.bodies._Opening.finish"
_MOST = "servers.rounds.collect.most_bytes"
_LETTERS = 20


@dataclass(frozen=True)
class Refused:
    """Where a message is sent and what stands in its way."""

    phase: Phase
    defence: str
    without: Mapping[str, object]
    figure: str = "hostile requests that a server took"


class HostileMessage(Attack):
    """Requests of one kind to two real servers in the middle of a round; it succeeds when one of them is taken."""

    def __init__(self, name: str, party: Party, tries: str, act: Act, refused: Refused) -> None:
        self.name, self.tries, self._act, self._phase = name, tries, act, refused.phase
        self.party, self.defence, self.figure = party, refused.defence, refused.figure
        self.without = refused.without

    def attempt(self, folder: Path) -> Found:
        with ServersInMemory(folder, [*SITES, STRANGER]) as servers:
            pair = Pair(servers)
            try:
                queried = self._phase in (Phase.LOCKED, Phase.MEASURED)
                opened = pair.round(opens=Needs.DISTANCES if queried else Needs.NOTHING)
                opened.advance(self._phase)
                taken = [answer for answer in self._act(opened) if answer.is_success]
            finally:
                pair.close()
        return Found(bool(taken), len(taken))


# --- what is sent -----------------------------------------------------------------------------------------------------


def _copied(opened: Round) -> list[httpx.Response]:
    return [opened.put(VICTIM, Side.A, opened.honest[OTHER][Side.A].sealed())]


def _of_another_announcement(opened: Round) -> list[httpx.Response]:
    told = opened.announcement.model_copy(update={"weight_list_digest": "22" * 32})
    stale = opened.fresh(VICTIM, announcement=told)
    return [opened.put(VICTIM, side, stale[side].sealed()) for side in Side]


def _not_as_committed(opened: Round) -> list[httpx.Response]:
    return [opened.put(VICTIM, Side.B, forged.another_share_than_committed(opened.honest[VICTIM], Side.B))]


def _too_long(opened: Round) -> list[httpx.Response]:
    longer = opened.fresh(VICTIM, np.resize(opened.x[VICTIM], 50 * opened.x[VICTIM].size))
    stated = forged.with_header(longer[Side.B], length=opened.x[VICTIM].size)
    return [opened.put(VICTIM, Side.B, stated.sealed())]


def _second_share(opened: Round) -> list[httpx.Response]:
    return [opened.put(EARLY, Side.A, opened.fresh(EARLY)[Side.A].sealed())]


def _announced(**changes: object) -> Act:
    def act(opened: Round) -> list[httpx.Response]:
        changed = opened.announcement.model_copy(update=changes)
        return [opened.announce_as_is(sign(changed, REQUESTER, opened.sites.me.keys.signing))]

    return act


def _released(*sites: str) -> Act:
    def act(opened: Round) -> list[httpx.Response]:
        agreed = there(opened.current.agreed_set, "agreed set").message
        chosen = malicious.release_set(agreed, sites)
        body = sign(chosen, REQUESTER, opened.sites.me.keys.signing).canonical()
        return [opened.sites.me.send(side, "PUT", opened.path(paths.RELEASE_SET), body) for side in Side]

    return act


def _output(opened: Round) -> list[httpx.Response]:
    return [opened.client(STRANGER).send(side, "GET", opened.path(paths.OUTPUT)) for side in Side]


def _letters(opened: Round) -> list[httpx.Response]:
    notice = bytes(sealed_small_length(NOTICE_BYTES))
    made_up = [opened.path(paths.MAIL, topic=f"decline-{n}", recipient=REQUESTER) for n in range(2, 2 + _LETTERS)]
    return [opened.client(VICTIM).send(Side.A, "PUT", path, notice) for path in made_up]


# --- with the defence taken out ---------------------------------------------------------------------------------------


def _any_header(part: object, raw: bytes) -> ContributionHeader:
    return ContributionHeader.parse(raw)


def _any_length(opening: _Opening[ContributionHeader]) -> ContributionHeader:
    opening._take(opening.reader.finish())
    header = opening._header
    assert isinstance(header, ContributionHeader)
    return header


def _keeps(*_: object) -> Reply:
    return Reply.KEEP


def _first_receipt(server: object, study: object, known: ContributionRecord, digest: str) -> Signed[Receipt]:
    return known.receipt


_HEADER = "the header of a share names site, study, round and announcement, and is sealed with it"
_ANNOUNCED = "one announcement per round, checked against the study"
_CHOSEN = "one release set per round, over at least the announced number of agreed sites"
_LETTER = "letters that the study calls for now, of one length"


_OPENS: Final = "servers.rounds.collect.opens_round"
_PART: Final = "protocol.bodies.contribution.Part.require"
_CHOOSE: Final = "servers.rounds.release.answer"
_ROWS: Final[tuple[tuple[str, Party, str, Act, Refused], ...]] = (
    (
        "share-copied",
        Party.SITE,
        "hands in another site's sealed share as its own",
        _copied,
        Refused(Phase.COLLECTING, _HEADER, {_PART: _any_header}),
    ),
    (
        "share-of-another-announcement",
        Party.SITE,
        "hands in shares that were made for another weight list",
        _of_another_announcement,
        Refused(Phase.COLLECTING, _HEADER, {_PART: _any_header}),
    ),
    (
        "share-not-as-committed",
        Party.SITE,
        "sends another share than it committed to",
        _not_as_committed,
        Refused(
            Phase.COLLECTING,
            "commitments to both shares in both headers",
            {"servers.http.bodies.ContributionIntake.check_commitment": passes},
        ),
    ),
    (
        "share-fifty-times-as-long",
        Party.SITE,
        "fills a server's disk with a share that is longer than the model",
        _too_long,
        Refused(Phase.COLLECTING, "the length that the study's model has", {_FINISH: _any_length, _MOST: _plenty}),
    ),
    (
        "share-sent-twice",
        Party.SITE,
        "replaces its share after the receipt",
        _second_share,
        Refused(Phase.COLLECTING, "the first share stands", {"servers.rounds.collect._same_receipt": _first_receipt}),
    ),
    (
        "announcement-twice",
        Party.REQUESTER,
        "announces two models in one round",
        _announced(model_digest="22" * 32),
        Refused(Phase.COLLECTING, _ANNOUNCED, {_OPENS: lambda told, last, *_: last is None}),
    ),
    (
        "announcement-for-two",
        Party.REQUESTER,
        "announces a round with fewer contributors than the study's least number",
        _announced(least_contributors=2),
        Refused(Phase.SETTLED, _ANNOUNCED, {_OPENS: lambda *_: True}),
    ),
    (
        "release-of-two",
        Party.REQUESTER,
        "releases the sum of two contributors",
        _released(*SITES[:3]),
        Refused(Phase.MEASURED, _CHOSEN, {_CHOOSE: _keeps}),
    ),
    (
        "release-twice",
        Party.REQUESTER,
        "releases a second sum, without one site, after the first",
        _released(*SITES[:4]),
        Refused(Phase.RELEASED, _CHOSEN, {_CHOOSE: _keeps}),
    ),
    (
        "output-for-an-outsider",
        Party.SITE,
        "fetches the sum of a round that did not list it",
        _output,
        Refused(Phase.RELEASED, "the list of the round", {"servers.rounds.release._listed_now": lambda *_: True}),
    ),
    (
        "letters-of-made-up-topics",
        Party.SITE,
        "fills the relaying server and everybody's views with letters",
        _letters,
        Refused(Phase.COLLECTING, _LETTER, {"servers.routes.mail.require_announced": passes}, "letters kept, of 20"),
    ),
)


def hostile_messages() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return tuple(HostileMessage(*row) for row in _ROWS)
