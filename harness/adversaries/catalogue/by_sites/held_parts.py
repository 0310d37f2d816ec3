"""A part of an upload that is held back until another upload has taken its place, and then goes on.

The site sends ordinary signed requests. The first upload names the digest of the site's honest message, holds other
bytes and is held back; another digest pushes it out; the honest message comes and gets its receipt; then the held-back
part goes on. Where a writer outlives its upload, it writes into the file that was checked: the site swaps its share, or
cuts it, after everything about it was looked at.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from harness.adversaries.catalogue.attack import Attack, Found, Party, passes
from harness.adversaries.forgeries import Parts
from harness.adversaries.scripted.ciphertexts import sent as encrypted
from harness.adversaries.scripted.held_back import HeldBack
from harness.adversaries.scripted_requester import ScriptedSites, make_study
from harness.adversaries.scripted_rounds import SITES, STRANGER, VICTIM, OpenRound, Pair
from harness.adversaries.signed_client import SignedClient, digest_of
from harness.federation.memory.servers import ServersInMemory
from protocol.bodies.contribution import ciphertext_parts
from protocol.ckks.parameters import CkksParameters
from protocol.ckks.scheme import Scheme
from protocol.parameters import Needs, RingBits
from protocol.sharing import Side
from protocol.wire import paths
from protocol.wire.channel.signing import DigestField
from protocol.wire.commitment import commitment_to
from protocol.wire.messages import Announcement, RoundState, RuleName, RuleSpec, StudyProtection

_LENGTHS: Final[Mapping[RingBits, int]] = {64: 10 * 2**15 + 5, 48: 430_000}
"""Elements whose share has ten chunks or so: a server takes four at once."""
_VALUES: Final = 300_000
_FED: Final = 9 * 2**17
"""So much of a message that a server has taken a megabyte of it."""
_IN_PARTS: Final = "servers.store.files.share_in_parts."


def _one_name() -> str:
    return "content"


def _emptied(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_TRUNC, 0o600)


WRITERS_GO_ON: Final[Mapping[str, object]] = {
    f"{_IN_PARTS}ShareInParts._require_going": passes,
    f"{_IN_PARTS}ShareInParts._require_as_checked": passes,
    f"{_IN_PARTS}ShareInParts._forget_files": passes,
    f"{_IN_PARTS}ShareInParts._leave_nothing": passes,
    f"{_IN_PARTS}_own_name": _one_name,
    f"{_IN_PARTS}_new_file": _emptied,
    "servers.store.files.chunk_tags.ChunkTags.require": passes,
}
"""Taken out: that an upload which is given up writes nothing, that each has a file of its own, and both comparisons."""


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
        """Another digest takes the place of what came before."""
        self.held_back(body, secrets.token_bytes(32)).answer()

    def finish(self, body: bytes, digest: bytes) -> bool:
        target = f"{self.path}{paths.WHOLE}{self._asked(body, digest)}"
        return self.client.send(self.side, "POST", target).is_success

    @staticmethod
    def _asked(body: bytes, digest: bytes) -> str:
        return f"?digest={digest.hex()}&length={len(body)}"


_FOLLOWS: Final = DigestField.SEALED


class _Swapped:
    """The steps of a swap: ``receipt`` up to the receipt for the honest message, ``swap`` after it."""

    def __init__(self, to: _Uploading, honest: bytes, other: bytes) -> None:
        digest = digest_of(honest, _FOLLOWS)
        self._late = to.held_back(other, digest)
        self._late.let_go(_FED)
        to.pushed_out(other)
        again = to.held_back(honest, digest)
        again.let_go(_FED)
        self._late.let_go(2 * _FED)  # its writer finds the file of the one that took its place
        again.answer()
        self.receipt = to.finish(honest, digest)

    def swap(self) -> None:
        self._late.answer()


def _shares(folder: Path, federation: ServersInMemory, side: Side) -> dict[str, bytes]:
    lie = folder / federation.roster.operator(side).name / "data" / "shares"
    return {path.name: path.read_bytes() for path in lie.iterdir()}


class SwappedShare(Attack):
    """A share of which the last chunks are others after the range check; the sum is then not of what was checked."""

    party = Party.SITE
    defence = (
        "an upload that is given up writes no more, each has a file of its own, and each chunk that is read is compared"
    )
    figure = "coordinates of the sum that hold what was never checked"
    without: Mapping[str, object] = WRITERS_GO_ON

    def __init__(self, name: str, bits: RingBits) -> None:
        self.name, self._bits = name, bits
        self.tries = f"swaps its share of {bits} bits behind the range check, by a part that was pushed out and goes on"

    def attempt(self, folder: Path) -> Found:
        with ServersInMemory(folder, [*SITES, STRANGER]) as servers:
            pair = Pair(servers)
            try:
                return self._attempt(pair)
            finally:
                pair.close()

    def _attempt(self, pair: Pair[ServersInMemory]) -> Found:
        length = _LENGTHS[self._bits]
        of_64 = make_study(pair.federation, length).parameters
        pair.new_study(length, parameters=of_64.model_copy(update={"ring_bits": self._bits}))
        opened = pair.round(length, opens=Needs.NOTHING)
        opened.sites.announce(opened.announcement)
        cheat = _cheat(opened)
        parts = opened.honest[VICTIM]
        assert opened.put(VICTIM, Side.A, parts[Side.A].sealed()).is_success
        swapped = _Swapped(cheat, parts[Side.B].sealed(), _other(parts[Side.B]))
        assert swapped.receipt
        opened.sent.add(VICTIM)
        opened.lock()
        opened.measure()
        swapped.swap()
        opened.release()
        total = sum((opened.x[site] for site in opened.agreed), np.zeros(length, dtype=np.uint64))
        wrong = int(np.count_nonzero(opened.sites.output(SITES[3], opened.number) != total))
        return Found(wrong > 0 or opened.agreed != SITES, wrong)


class CutShare(Attack):
    """A share that is emptied and grows to a megabyte again before its receipt: no server can sum it."""

    name = "part-pushed-out-cuts-a-share"
    party = Party.SITE
    tries = "cuts its share to a megabyte behind the check of its digest, so that the round of all ends in nothing"
    defence = SwappedShare.defence
    figure = "rounds that ended without a sum"
    without: Mapping[str, object] = WRITERS_GO_ON

    def attempt(self, folder: Path) -> Found:
        with ServersInMemory(folder, [*SITES, STRANGER]) as servers:
            pair = Pair(servers)
            try:
                return self._attempt(pair)
            finally:
                pair.close()

    def _attempt(self, pair: Pair[ServersInMemory]) -> Found:
        opened = pair.round(_LENGTHS[64], opens=Needs.NOTHING)
        opened.sites.announce(opened.announcement)
        cheat, parts = _cheat(opened), opened.honest[VICTIM]
        assert opened.put(VICTIM, Side.A, parts[Side.A].sealed()).is_success
        honest, other = parts[Side.B].sealed(), _other(parts[Side.B])
        digest = digest_of(honest, _FOLLOWS)
        late = cheat.held_back(other, digest)
        cheat.pushed_out(other)
        cheat.held_back(honest, digest).answer()
        late.let_go(_FED)  # it begins its file anew
        assert cheat.finish(honest, digest)
        opened.sent.add(VICTIM)
        try:
            return self._ended(opened)
        finally:
            late.answer()

    @staticmethod
    def _ended(opened: OpenRound[ServersInMemory]) -> Found:
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


class SwappedCiphertext(Attack):
    """The same of a contribution under CKKS, of which server A keeps the only copy."""

    name = "ciphertext-swapped-behind-its-receipt"
    party = Party.SITE
    tries = "swaps its ciphertexts behind their receipt, by a part that was pushed out and goes on"
    defence = SwappedShare.defence
    figure = "bytes of what was summed that were never checked"
    without: Mapping[str, object] = WRITERS_GO_ON

    def attempt(self, folder: Path) -> Found:
        with ServersInMemory(folder, [*SITES, STRANGER]) as servers:
            study = make_study(
                servers, _VALUES, rule=RuleSpec(name=RuleName.FEDAVG), protection=StudyProtection("ckks")
            )
            sites = ScriptedSites(servers, study)
            try:
                sites.create()
                return self._attempt(folder, sites)
            finally:
                sites.close()

    def _attempt(self, folder: Path, sites: ScriptedSites[ServersInMemory]) -> Found:
        key = Scheme(CkksParameters()).secret_key(bytes(range(32)), sites.study.digest())
        announced = sites.announcement(1, listed=SITES[1:], opens=Needs.NOTHING)
        announced = announced.model_copy(update={"ckks_key_id": key.id.hex()})
        sites.announce(announced)
        body, other = (encrypted(key, site, dimension=_VALUES) for site in ("hospital-1", "hospital-2"))
        path = sites.contribution_path(1)
        swapped = _Swapped(
            _Uploading(sites.clients[VICTIM], Side.A, path),
            _encrypted_message(sites, announced, VICTIM, body),
            _encrypted_message(sites, announced, VICTIM, other),
        )
        assert swapped.receipt
        for site in SITES:
            if site != VICTIM:
                sites.clients[site].ok(Side.A, "PUT", path, _encrypted_message(sites, announced, site, body))
        current = sites.wait_round(Side.A, 1, RoundState.MEASURED)
        before = _shares(folder, sites.federation, Side.A)
        swapped.swap()
        after = _shares(folder, sites.federation, Side.A)
        sites.release(current)
        ended = sites.wait_round(Side.A, 1, RoundState.RELEASED, RoundState.SKIPPED)
        wrong = sum(
            int(np.count_nonzero(np.frombuffer(after[name], np.uint8) != np.frombuffer(data, np.uint8)))
            for name, data in before.items()
        )
        return Found(wrong > 0 and ended.state is RoundState.RELEASED, wrong)


def _cheat(opened: OpenRound[ServersInMemory]) -> _Uploading:
    return _Uploading(opened.client(VICTIM), Side.B, opened.path(paths.CONTRIBUTION))


def _other(parts: Parts) -> bytes:
    """A message of the same header and length with other content."""
    return replace(parts, plain=secrets.token_bytes(len(parts.plain))).sealed()


def _encrypted_message(sites: ScriptedSites[ServersInMemory], announced: Announcement, site: str, body: bytes) -> bytes:
    salt, content_key = secrets.token_bytes(32), secrets.token_bytes(32)
    header = ciphertext_parts(announced, 1, site, _VALUES + 1)[Side.A].header(
        {Side.A: commitment_to(body, salt, content_key)}
    )
    recipient = sites.federation.roster.operator_a.sealing
    return Parts(header.canonical(), body, recipient, content_key, salt).sealed()


def held_parts() -> tuple[Attack, ...]:
    """Shares in either ring, and a share that is cut."""
    return (
        SwappedShare("part-pushed-out-swaps-a-share", 64),
        SwappedShare("part-pushed-out-swaps-a-48-bit-share", 48),
        CutShare(),
    )


def held_parts_of_ciphertexts() -> tuple[Attack, ...]:
    """Of a round under CKKS."""
    return (SwappedCiphertext(),)
