"""The requester's mail: sealed once, journalled, and sent again as it is (docs/protocol.md 3, 4)."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import Field

from client_agent.net.envelopes import Body
from client_agent.requester.study import RequesterStudy
from client_agent.site.context import RELAY
from client_agent.site.failpoints import Point
from client_agent.site.letters import Attestation, WeightMail, Welcome
from host.files import new_folder, write_durably
from host.frozen import Frozen
from protocol.errors import MoietyError
from protocol.messages import paths
from protocol.messages.control import Message, Signed
from protocol.messages.letter import LetterKind, Topic, seal_checkpoint, seal_letter
from protocol.messages.purpose import Purpose


class CheckpointKey(Frozen, hide_input_in_errors=True):
    """The key of one model version's checkpoint."""

    content_key: str = Field(repr=False)
    digest: str


def send_welcome(
    owner: RequesterStudy, sites: list[str], model: bytes, attestations: tuple[Signed[Attestation], ...]
) -> None:
    """The present model's checkpoint for every site once, unless sites derive it, and a welcome for each of ``sites``.

    ``attestations`` are its contributors' word, which sites need to take any model but version 0.
    """
    version = owner.state.model_version or 0
    folder = new_folder(owner.journal.folder / "welcome" / f"{version:06d}")
    key = _checkpoint_key(owner, folder, version, model)
    if version > 0 or owner.study.pretrained_digest is not None:
        _send_checkpoint(owner, folder, version, key, model)
    for site in sites:
        welcome = Welcome(
            study_digest=owner.study_digest,
            site=site,
            model_version=version,
            checkpoint_digest=key.digest,
            site_key=owner.state.site_key or "",
            content_key=key.content_key,
            previous=owner.led_here(),
            attestations=attestations,
            ckks_key_seed=owner.state.ckks_key_seed,
            ckks_key_id=owner.ckks_key_id(Purpose.UPDATE),
        )
        _send(owner, folder / f"{site}.sealed", Topic(LetterKind.WELCOME, version), site, owner.signed(welcome))


def send_weights(owner: RequesterStudy, mail: WeightMail, sites: tuple[str, ...]) -> None:
    """The weight list to every listed site, with the ends of rounds that the site missed.

    A site that was in the last release has heard of all skips before it.
    """
    number = mail.weight_list.round
    folder = new_folder(owner.journal.round_folder(number) / "mail")
    for site in sites:
        heard = 0
        if mail.previous is not None and site in mail.previous.agreed_set.message.sites:
            heard = mail.previous.announcement.round
        skipped = tuple(skip for skip in mail.skipped if skip.message.round > heard)
        own = mail.model_copy(update={"missed": owner.missed_by(site), "skipped": skipped})
        _send(owner, folder / f"{site}.sealed", Topic(LetterKind.WEIGHTS, number), site, own)


def _send(owner: RequesterStudy, kept: Path, topic: Topic, site: str, message: Message) -> None:
    context, journal = owner.context, owner.journal
    if not kept.exists():
        to = context.held.chain.newest_with(site).party(site)
        if to is None:
            raise MoietyError(f"{site!r} is not in the roster")
        sealed = seal_letter(message, topic.kind, owner.study_digest, context.site, to, topic.number)
        journal.reach(Point.BEFORE_LETTER_JOURNALLED)
        write_durably(kept, sealed)
        journal.reach(Point.AFTER_LETTER_JOURNALLED)
    context.clients[RELAY].put_mail(owner.study.name, str(topic), site, Body.sealed(kept.read_bytes()))
    journal.reach(Point.AFTER_LETTER_SENT)


def _checkpoint_key(owner: RequesterStudy, folder: Path, version: int, model: bytes) -> CheckpointKey:
    def made() -> CheckpointKey:
        content_key = owner.context.randomness.bytes(32, f"checkpoint {owner.study_digest} version {version}")
        return CheckpointKey(content_key=content_key.hex(), digest=hashlib.sha256(model).hexdigest())

    return owner.journal.once(folder / "key.json", CheckpointKey, made)


def _send_checkpoint(owner: RequesterStudy, folder: Path, version: int, key: CheckpointKey, model: bytes) -> None:
    sealed = folder / "checkpoint.sealed"
    if not sealed.exists():
        write_durably(sealed, seal_checkpoint(model, bytes.fromhex(key.content_key)))
    body = Body.file(sealed, hashlib.sha256(sealed.read_bytes()).digest())
    topic = str(Topic(LetterKind.CHECKPOINT, version))
    owner.context.clients[RELAY].put_mail(owner.study.name, topic, paths.EVERY_SITE, body)
