"""A round of two real servers in which one party does otherwise: who is in it, what comes twice, late or piles up."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np

from harness.attack.attack import Attempt, Found, passes, taken_out
from harness.attack.ckks_attacks import sent as encrypted
from harness.attack.forgeries import Parts
from harness.attack.hostile_messages import ANY_HEADER, ANY_RELEASE
from harness.attack.scripted_agents import PARTIES, ROSTER
from harness.attack.scripted_requester import ScriptedRequester, make_study
from harness.attack.scripted_rounds import (
    EARLY,
    GRID,
    REQUESTER,
    SITES,
    SMALL,
    STRANGER,
    VICTIM,
    Phase,
    RoundInMemory,
    data_folder,
    pair_in_memory,
    refusals,
    small_update,
    soon,
)
from harness.attack.signed_client import ENCLOSED_OF_LONG_BODIES, Outgoing, SignedClient, digest_of
from harness.engine.parties import SiteEntry, make_parties
from harness.federation.server_apps import ServersInMemory
from protocol.channel.commitment import commitment_to
from protocol.channel.sealing import sealed_small_length
from protocol.channel.signing import DigestField
from protocol.ckks.ciphertext import CkksParameters
from protocol.ckks.scheme import Scheme
from protocol.errors import MoietyError
from protocol.messages import control, paths
from protocol.messages.bodies import ciphertext_parts
from protocol.messages.control import (
    Announcement,
    Roster,
    RoundState,
    RoundView,
    RuleName,
    RuleSpec,
    Signed,
    StudyProtection,
    TagsFailed,
    countersign,
)
from protocol.messages.letter import NOTICE_BYTES
from protocol.messages.peer import CollectedSet
from protocol.parameters import TAG_COORDINATES, Needs, RingBits
from protocol.roster.keyfile import dump_roster, parse_roster
from protocol.sharing import Side
from servers.rounds import contributions
from servers.server import Server
from servers.store.records import RoundRecord

_SYBILS: Final = 5
_CONFLICTS: Final = 105
_MOST_RECORDED: Final = 100
_EVERYBODY: Final = (*SITES, STRANGER)


def _made_up_sites(folder: Path) -> Found:
    """One hospital adds sites of its own to the roster and signs it as who it is."""
    me = ROSTER.contributors[0].name
    entries = [SiteEntry(f"sybil-{number}", 50) for number in range(_SYBILS)]
    made_up = make_parties("sybils", entries[0].name, entries, bytes([7]) * 32).roster.message.sites
    grown = ROSTER.model_copy(update={"sites": (*ROSTER.sites, *made_up)})
    signed = Signed[Roster](message=grown, signatures=PARTIES.roster.signatures)
    path = folder / "roster.toml"
    path.write_text(dump_roster(countersign(signed, me, PARTIES.keys_of(me).signing)))
    try:
        taken = control.require_roster(parse_roster(path.read_text(), "roster.toml"))
    except MoietyError as refused:
        return Found(False, 0, refused.detail)
    more = len(taken.sites) - len(ROSTER.sites)
    return Found(more > 0, more)


def _share_again(folder: Path) -> Found:
    """The bytes of a share that a server took in one round, sent again in the next."""
    with pair_in_memory(folder) as pair:
        before = pair.round(opens=Needs.NOTHING)
        before.finish()
        opened = pair.round(opens=Needs.NOTHING)
        opened.advance(Phase.COLLECTING)
        old = before.honest[VICTIM]
        taken = sum(opened.put(VICTIM, side, old[side].sealed()).is_success for side in Side)
    return Found(taken > 0, taken)


def _drops_a_site(folder: Path) -> Found:
    """Server B says that it does not hold a site's share, and the round goes on without."""
    honest, awaited = contributions.collected, contributions.awaited_sites

    def without_the_victim(server: Server, record: RoundRecord) -> CollectedSet:
        held = honest(server, record)
        if server.side is Side.A:
            return held
        return held.model_copy(update={"contributions": tuple(c for c in held.contributions if c.site != VICTIM)})

    def nobody_at_b(server: Server, record: RoundRecord) -> frozenset[str]:
        return awaited(server, record) if server.side is Side.A else frozenset()

    lies = {f"servers.rounds.{module}.awaited_sites": nobody_at_b for module in ("contributions", "state")}
    lies_of_shares = {f"servers.rounds.{module}.collected": without_the_victim for module in ("state", "side_b")}
    with taken_out({**lies, **lies_of_shares}), pair_in_memory(folder) as pair:
        opened = pair.round(opens=Needs.NOTHING, closes_at_s=soon(pair))
        opened.sites.announce(opened.announcement)
        opened.lock()
        left_out = set(SITES) - set(opened.agreed)
    return Found(bool(left_out), len(left_out))


def _letters_that_conflict(folder: Path) -> Found:
    """A letter under a topic that is taken, again and again with other bytes: each is refused, and recorded."""
    length = sealed_small_length(NOTICE_BYTES) // 2
    with pair_in_memory(folder, _EVERYBODY) as pair:
        opened = pair.round()
        path = opened.path(paths.MAIL, topic="refusal", recipient=REQUESTER)
        for number in range(1 + _CONFLICTS):
            opened.client(EARLY).send(Side.A, "PUT", path, number.to_bytes(2, "big") * length)
        kept = len(refusals(pair.federation))
    return Found(kept > _MOST_RECORDED, kept)


def _letters_that_pile_up(folder: Path) -> Found:
    """A requester that writes lists for one round and none for those after it: no later list supersedes the first."""
    with pair_in_memory(folder, _EVERYBODY) as pair:
        for number in range(3):
            opened = pair.round()
            for site in SITES[1:] if number == 0 else ():
                path = opened.path(paths.MAIL, topic=f"weights-{opened.number}", recipient=site)
                opened.sites.me.ok(Side.A, "PUT", path, b"weights")
            opened.finish()
        waiting = len(opened.sites.view(Side.A, VICTIM).mail)
    return Found(waiting > 0, waiting)


def _release_by_distances(folder: Path) -> Found:
    """The release set follows the distances: that is the rule's work, and nobody checks which rule it was."""
    with pair_in_memory(folder) as pair:
        opened = pair.round(opens=Needs.DISTANCES)
        opened.advance(Phase.MEASURED)
        seen = opened.sites.openings(opened.current, {})
        near = sorted(SITES[1:], key=lambda site: seen[site].distance or 0.0)[:3]
        chosen = tuple(site for site in SITES if site in (REQUESTER, *near))
        opened.release(chosen)
        opened.require_sum(chosen)
    return Found(True, len(SITES) - len(chosen))


def _retry_without(folder: Path) -> Found:
    """After both servers have committed to a sum, and again after its tags were found wrong, a smaller release set.

    The difference of what the two would open is one site's update.
    """
    with pair_in_memory(folder) as pair:
        sites = pair.new_study(SMALL, tags=True)
        announcement = sites.announcement(1, listed=SITES[1:])
        sites.announce(announcement)
        draw = np.random.default_rng(5)
        x = {site: small_update(draw, SMALL) for site in SITES}
        vectors = {site: sites.with_tags(x[site], announcement) for site in SITES}
        vectors[VICTIM][-TAG_COORDINATES:][:1] += np.uint64(1)
        sites.contribute_all(announcement, vectors)
        current = sites.measured(1, x[REQUESTER], dict.fromkeys(SITES[1:], GRID))
        sites.release(current)
        views = sites.committed(1)
        again = partial(_taken, sites, current, [site for site in SITES if site != VICTIM])
        taken = again()
        if not taken:
            sites.fail(sites.judged(views, TagsFailed))
            taken = again()
    return Found(taken > 0, taken)


def _taken(sites: ScriptedRequester[ServersInMemory], current: RoundView, fewer: Sequence[str]) -> int:
    body, path = sites.release_body(current, fewer), sites.path(paths.RELEASE_SET, round=1, attempt=1)
    return sum(sites.me.send(side, "PUT", path, body).is_success for side in Side)


_ROUNDS_OF_TWO: Final = {
    "sybils-in-a-roster": Attempt(_made_up_sites, {"protocol.messages.control.check_signature": lambda *_: None}),
    "share-of-an-earlier-round": Attempt(_share_again, ANY_HEADER),
    "server-drops-a-site": Attempt(_drops_a_site),
    "letters-that-conflict": Attempt(_letters_that_conflict, {"servers.store.sql.MOST_REFUSALS": 10**6}),
    "letters-that-pile-up": Attempt(_letters_that_pile_up, {"servers.rounds.letters._of_rounds_before": lambda *_: []}),
    "release-picked-by-distances": Attempt(_release_by_distances),
    "tags-retry-without-a-site": Attempt(_retry_without, ANY_RELEASE),
}


# --- a part of an upload that is held back until another upload has taken its place -----------------------------------
#
# The first upload names the digest of the site's honest message, holds other bytes and is held back; another digest
# pushes it out; the honest message comes and gets its receipt; then the held-back part goes on. Where a writer outlives
# its upload, it writes into the file that was checked: the site swaps its share, or cuts it, after the check.

_LENGTHS: Final[Mapping[RingBits, int]] = {64: 10 * 2**15 + 5, 48: 430_000}
"""Elements whose share has ten chunks or so: a server takes four at once."""
_VALUES: Final = 300_000
_FED: Final = 9 * 2**17
"""So much of a message that a server has taken a megabyte of it."""
_FOLLOWS: Final = DigestField.SEALED


class HeldBack:
    """A request that is sent at once, in a thread of its own; behind its envelope nothing arrives before `let_go`.

    To servers in memory alone.
    """

    def __init__(self, client: SignedClient, outgoing: Outgoing, body: bytes) -> None:
        self._before = len(outgoing.content) - len(body)
        self._passed, self._allowed = 0, self._before + ENCLOSED_OF_LONG_BODIES
        self._loop: asyncio.AbstractEventLoop | None = None
        self._more: asyncio.Future[None] | None = None
        self._idle = threading.Event()
        self._answer: httpx.Response | None = None
        self._thread = threading.Thread(target=self._send, args=(client, outgoing), name="held back")
        self._thread.start()
        self._idle.wait()

    def let_go(self, body_bytes: int) -> None:
        """So many of the body's first bytes arrive; returns once the server has taken them, or has answered."""
        self._arrive(self._before + body_bytes)

    def answer(self) -> httpx.Response | None:
        """The server's answer, once everything has arrived; None where its sender had waited too long before."""
        self._arrive(None)
        self._thread.join()
        return self._answer

    def _arrive(self, allowed: int | None) -> None:
        self._idle.clear()
        self._allowed = 2**62 if allowed is None else allowed
        if not self._thread.is_alive():
            return
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake)
        self._idle.wait()

    def _send(self, client: SignedClient, outgoing: Outgoing) -> None:
        try:
            self._answer = client.post(outgoing, held_back=self)
        except httpx.TransportError:
            pass
        finally:
            self._idle.set()

    # --- in the servers' event loop ---

    async def next_message(self, content: bytes) -> dict[str, Any]:
        self._loop = asyncio.get_running_loop()
        while self._passed >= min(self._allowed, len(content)):
            self._more = self._loop.create_future()
            self._idle.set()
            await self._more
        piece = content[self._passed : self._allowed]
        self._passed += len(piece)
        return {"type": "http.request", "body": piece, "more_body": self._passed < len(content)}

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)


@dataclass(frozen=True)
class _Uploading:
    """The cheat's way to send messages in parts to one server."""

    client: SignedClient
    side: Side
    path: str

    def held_back(self, body: bytes, digest: bytes) -> HeldBack:
        """The message as one part, of which nothing arrives yet."""
        target = f"{self.path}{paths.PART}{self._asked(body, digest)}&offset=0"
        return HeldBack(self.client, self.client.enclose(self.side, "PUT", target, body, digest_field=_FOLLOWS), body)

    def pushed_out(self, body: bytes) -> None:
        self.held_back(body, secrets.token_bytes(32)).answer()

    def finish(self, body: bytes, digest: bytes) -> None:
        target = f"{self.path}{paths.WHOLE}{self._asked(body, digest)}"
        self.client.ok(self.side, "POST", target)

    def swapped(self, honest: bytes, other: bytes) -> HeldBack:
        """Upload until the honest message has its receipt. -> the other's held-back part, whose answer is the swap"""
        digest = digest_of(honest, _FOLLOWS)
        late = self.held_back(other, digest)
        late.let_go(_FED)
        self.pushed_out(other)
        again = self.held_back(honest, digest)
        again.let_go(_FED)
        late.let_go(2 * _FED)  # its writer finds the file of the one that took its place
        again.answer()
        self.finish(honest, digest)
        return late

    def cut(self, honest: bytes, other: bytes) -> HeldBack:
        """The same, but the file is begun anew before the receipt, and grows to a megabyte again."""
        digest = digest_of(honest, _FOLLOWS)
        late = self.held_back(other, digest)
        self.pushed_out(other)
        self.held_back(honest, digest).answer()
        late.let_go(_FED)
        self.finish(honest, digest)
        return late

    @staticmethod
    def _asked(body: bytes, digest: bytes) -> str:
        return f"?digest={digest.hex()}&length={len(body)}"


def _begun(opened: RoundInMemory) -> tuple[_Uploading, bytes, bytes]:
    """The victim's honest share at B and another message of the same header and length; A has the honest one."""
    opened.sites.announce(opened.announcement)
    parts = opened.honest[VICTIM]
    assert opened.put(VICTIM, Side.A, parts[Side.A].sealed()).is_success
    opened.sent.add(VICTIM)
    cheat = _Uploading(opened.client(VICTIM), Side.B, opened.path(paths.CONTRIBUTION))
    other = replace(parts[Side.B], plain=secrets.token_bytes(len(parts[Side.B].plain)))
    return cheat, parts[Side.B].sealed(), other.sealed()


def _swapped_share(bits: RingBits, folder: Path) -> Found:
    """A share of which the last chunks are others after the range check; the sum is then not of what was checked."""
    length = _LENGTHS[bits]
    with pair_in_memory(folder, [*SITES, STRANGER]) as pair:
        of_64 = make_study(pair.federation, length).parameters
        pair.new_study(length, parameters=of_64.model_copy(update={"ring_bits": bits}))
        opened = pair.round(length, opens=Needs.NOTHING)
        cheat, honest, other = _begun(opened)
        late = cheat.swapped(honest, other)
        opened.lock()
        opened.measure()
        late.answer()
        opened.release()
        total = sum((opened.x[site] for site in opened.agreed), np.zeros(length, dtype=np.uint64))
        wrong = int(np.count_nonzero(opened.sites.output(SITES[3], opened.number) != total))
        return Found(wrong > 0 or opened.agreed != SITES, wrong)


def _cut_share(folder: Path) -> Found:
    """A share that is emptied and grows to a megabyte again before its receipt: no server can sum it."""
    with pair_in_memory(folder, [*SITES, STRANGER]) as pair:
        opened = pair.round(_LENGTHS[64], opens=Needs.NOTHING)
        cheat, honest, other = _begun(opened)
        late = cheat.cut(honest, other)
        try:
            return _ended(opened)
        finally:
            late.answer()


def _ended(opened: RoundInMemory) -> Found:
    for site in SITES:
        if site not in opened.sent:
            opened.contribute(site)
    view = opened.sites.wait_round(Side.A, opened.number, RoundState.MEASURED, RoundState.SKIPPED)
    if view.state is RoundState.SKIPPED:
        return Found(True, 1, "skipped" if view.outcome is None else view.outcome.message.reason)
    opened.measure()
    opened.release()
    opened.require_sum(SITES)
    return Found(False, 0)


def _swapped_ciphertext(folder: Path) -> Found:
    """The same of a contribution under CKKS, of which server A keeps the only copy."""
    rule, protection = RuleSpec(name=RuleName.FEDAVG), StudyProtection("ckks")
    with pair_in_memory(folder, [*SITES, STRANGER]) as pair:
        sites = pair.new_study(_VALUES, rule=rule, protection=protection)
        key = Scheme(CkksParameters()).secret_key(bytes(range(32)), sites.study.digest())
        announced = sites.announcement(1, listed=SITES[1:], opens=Needs.NOTHING)
        announced = announced.model_copy(update={"ckks_key_id": key.id.hex()})
        sites.announce(announced)
        body, other = (encrypted(key, site, dimension=_VALUES) for site in ("hospital-1", "hospital-2"))
        path = sites.contribution_path(1)
        honest, swapped = (_encrypted_message(sites, announced, VICTIM, one) for one in (body, other))
        late = _Uploading(sites.clients[VICTIM], Side.A, path).swapped(honest, swapped)
        for site in SITES:
            if site != VICTIM:
                sites.clients[site].ok(Side.A, "PUT", path, _encrypted_message(sites, announced, site, body))
        current = sites.wait_round(Side.A, 1, RoundState.MEASURED)
        stored = list((data_folder(pair.federation, Side.A) / "shares").iterdir())
        before = [one.read_bytes() for one in stored]
        late.answer()
        wrong = sum(map(_different, before, (one.read_bytes() for one in stored)))
        sites.release(current)
        ended = sites.wait_round(Side.A, 1, RoundState.RELEASED, RoundState.SKIPPED)
    return Found(wrong > 0 and ended.state is RoundState.RELEASED, wrong)


def _different(before: bytes, now: bytes) -> int:
    return int(np.count_nonzero(np.frombuffer(before, np.uint8) != np.frombuffer(now, np.uint8)))


def _encrypted_message(
    sites: ScriptedRequester[ServersInMemory], announced: Announcement, site: str, body: bytes
) -> bytes:
    salt, content_key = secrets.token_bytes(32), secrets.token_bytes(32)
    header = ciphertext_parts(announced, 1, site, _VALUES + 1)[Side.A].header(
        {Side.A: commitment_to(body, salt, content_key)}
    )
    recipient = sites.federation.roster.operator_a.sealing
    return Parts(header.canonical(), body, recipient, content_key, salt).sealed()


_IN_PARTS: Final = "servers.store.upload_parts."
_WRITERS_GO_ON: Final[Mapping[str, object]] = {
    f"{_IN_PARTS}ShareInParts._require_going": passes,
    f"{_IN_PARTS}ShareInParts._require_as_checked": passes,
    f"{_IN_PARTS}ShareInParts._forget_files": passes,
    f"{_IN_PARTS}ShareInParts._leave_nothing": passes,
    f"{_IN_PARTS}_own_name": lambda: "content",
    f"{_IN_PARTS}_new_file": lambda path: os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_TRUNC, 0o600),
    "servers.store.chunk_tags.ChunkTags.require": passes,
}
"""Taken out: that an upload which is given up writes nothing, that each has a file of its own, and both comparisons."""
_HELD: Final = {
    "part-pushed-out-swaps-a-share": Attempt(partial(_swapped_share, 64), _WRITERS_GO_ON),
    "part-pushed-out-swaps-a-48-bit-share": Attempt(partial(_swapped_share, 48), _WRITERS_GO_ON),
    "part-pushed-out-cuts-a-share": Attempt(_cut_share, _WRITERS_GO_ON),
    "ciphertext-swapped-behind-its-receipt": Attempt(_swapped_ciphertext, _WRITERS_GO_ON),
}
ATTEMPTS: Final = {**_ROUNDS_OF_TWO, **_HELD}
