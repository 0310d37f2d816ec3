"""The requester's mail: sealed once, journalled, and sent again as it is (docs/protocol.md 3, 4)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from client_agent.network.body import Body
from client_agent.points import Point
from client_agent.site.context import RELAY
from client_agent.site.journal import StudyJournal
from client_agent.site.letter import Attestation, WeightMail, Welcome, require_same
from client_agent.study.participant import Participant
from host.files import new_folder, write_durably
from protocol.errors import MoietyError
from protocol.messages import paths
from protocol.messages.control import Decline, Message, Party, Signed, require_signatures, sign
from protocol.messages.letter import NOTICE_SEALED_BYTES, open_letter, seal_checkpoint, seal_letter
from protocol.messages.purpose import Purpose
from protocol.rounds.evidence import PastRelease


class CheckpointKey(BaseModel):
    """The key of one model version's checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
    content_key: str = Field(repr=False)
    digest: str


@dataclass(frozen=True)
class Evidence:
    """The release that led to a model, and the word of its contributors for it; nothing for version 0."""

    previous: PastRelease | None = None
    attestations: tuple[Signed[Attestation], ...] = ()


class Postbox:
    """Letters of one study's requester."""

    def __init__(self, owner: Participant) -> None:
        self._owner = owner
        self._context = owner.context
        self._journal: StudyJournal = owner.journal

    def send_welcome(self, sites: list[str], version: int, model: bytes, evidence: Evidence) -> None:
        """The checkpoint for every site once, unless sites derive it, and the welcome for each of ``sites``.

        ``evidence`` is what sites need to take any model but version 0.
        """
        folder = new_folder(self._journal.folder / "welcome" / f"{version:06d}")
        derived = version == 0 and self._owner.study.pretrained_digest is None
        key = self._checkpoint_key(folder, version, model)
        if not derived:
            self._send_checkpoint(folder, version, key, model)
        for site in sites:
            welcome = Welcome(
                study_digest=self._owner.study_digest,
                site=site,
                model_version=version,
                checkpoint_digest=key.digest,
                site_key=self._owner.state.site_key or "",
                content_key=key.content_key,
                previous=evidence.previous,
                attestations=evidence.attestations,
                ckks_key_seed=self._owner.state.ckks_key_seed,
                ckks_key_id=self._owner.ckks_key_id(Purpose.UPDATE),
            )
            signed = sign(welcome, self._context.site, self._context.keys.signing)
            topic = paths.fill(paths.WELCOME_TOPIC, version=version)
            self._send(folder / f"{site}.sealed", partial(self._seal, signed, "welcome", version), topic, site)

    def send_weights(
        self, mail: WeightMail, sites: tuple[str, ...], missed: Callable[[str], tuple[PastRelease, ...]]
    ) -> None:
        """The weight list to every listed site, with the ends of rounds that the site missed.

        A site that was in the last release has heard of all skips before it.
        """
        number = mail.weight_list.round
        folder = new_folder(self._journal.round_folder(number) / "mail")
        topic = paths.fill(paths.WEIGHTS_TOPIC, round=number)
        for site in sites:
            heard = 0
            if mail.previous is not None and site in mail.previous.agreed_set.message.sites:
                heard = mail.previous.announcement.round
            skipped = tuple(skip for skip in mail.skipped if skip.message.round > heard)
            own = mail.model_copy(update={"missed": missed(site), "skipped": skipped})
            self._send(folder / f"{site}.sealed", partial(self._seal, own, "weights", number), topic, site)

    def read_decline(self, round_number: int, sender: str) -> Decline:
        """A site's reasons, verified. Raises: BrokenSeal, BadSignature, Unavailable"""
        own = self._context.site
        topic = paths.fill(paths.DECLINE_TOPIC, round=round_number)
        sealed = self._context.clients[RELAY].get_mail(self._owner.study.name, topic, own, sender, NOTICE_SEALED_BYTES)
        signed = open_letter(
            sealed,
            Signed[Decline],
            "decline",
            self._owner.study_digest,
            sender,
            own,
            round_number,
            self._context.keys.sealing,
        )
        decline: Decline = require_signatures(signed, self._context.held.chain.newest_with(sender), (sender,))
        require_same("site", decline.site, sender)
        require_same("round", str(decline.round), str(round_number))
        require_same("study", decline.study_digest, self._owner.study_digest)
        return decline

    def _seal(self, message: Message, kind: str, number: int, to: Party) -> bytes:
        return seal_letter(message, kind, self._owner.study_digest, self._context.site, to, number)

    def _send(self, kept: Path, seal: Callable[[Party], bytes], topic: str, site: str) -> None:
        if not kept.exists():
            party = self._context.held.chain.newest_with(site).party(site)
            if party is None:
                raise MoietyError(f"{site!r} is not in the roster")
            sealed = seal(party)
            self._journal.reach(Point.BEFORE_LETTER_JOURNALLED)
            write_durably(kept, sealed)
            self._journal.reach(Point.AFTER_LETTER_JOURNALLED)
        self._context.clients[RELAY].put_mail(self._owner.study.name, topic, site, Body.sealed(kept.read_bytes()))
        self._journal.reach(Point.AFTER_LETTER_SENT)

    def _checkpoint_key(self, folder: Path, version: int, model: bytes) -> CheckpointKey:
        key = self._journal.read(folder / "key.json", CheckpointKey)
        if key is None:
            label = f"checkpoint {self._owner.study_digest} version {version}"
            content_key = self._context.randomness.bytes(32, label)
            key = CheckpointKey(content_key=content_key.hex(), digest=hashlib.sha256(model).hexdigest())
            self._journal.write(folder / "key.json", key)
        return key

    def _send_checkpoint(self, folder: Path, version: int, key: CheckpointKey, model: bytes) -> None:
        sealed = folder / "checkpoint.sealed"
        if not sealed.exists():
            write_durably(sealed, seal_checkpoint(model, bytes.fromhex(key.content_key)))
        topic = paths.fill(paths.CHECKPOINT_TOPIC, version=version)
        body = Body.file(sealed, hashlib.sha256(sealed.read_bytes()).digest())
        self._context.clients[RELAY].put_mail(self._owner.study.name, topic, paths.EVERY_SITE, body)
