"""Updates as ciphertexts at server A, and the average out of their sum (docs/protocol.md 11).

Encrypted once per round, sealed once, and resent as it is: a second encryption of the same update would be another
message. No more than one ciphertext is in memory besides the update. SEAL draws its randomness itself.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic.fixed_point import Update, scaling_of
from protocol.channel.sealing import Octets
from protocol.ckks.ciphertext import CkksParameters, Kind
from protocol.ckks.scheme import Decryptor, Encryptor, Scheme, Scratch, SecretKey
from protocol.ckks.update import SiteChecks, SumChecks, average, body_header, contribution
from protocol.errors import AnnouncementMismatch, ConfigurationError, TranscriptMismatch, UnknownResource
from protocol.messages.bodies import Part, ciphertext_parts
from protocol.messages.control import Announcement, Purpose, Roster, ShareKind, Study
from protocol.protection.interface import AtSite, Encoded, Fetch, UnderKey
from protocol.protection.shares import norm_of
from protocol.rounds.evidence import PastRelease, require_sum_release
from protocol.sharing import Side

_READ_BYTES: Final = 2**18


class Ciphertexts:
    """Server A adds what it cannot read; the sites, which hold the key, open and check the sum."""

    def whole(self, study: Study, purpose: Purpose) -> tuple[ShareKind, int]:
        """The values of an update: the site's weight and the shared parameters."""
        return ShareKind.CIPHERTEXT, 1 + study.model_dimension

    def parts(
        self, study: Study, announcement: Announcement, attempt: int, site: str, roster: Roster
    ) -> dict[Side, Part]:
        return ciphertext_parts(announcement, attempt, site, 1 + study.model_dimension)

    def encode(
        self, at: AtSite, announcement: Announcement, update: Update, weight: float, rounding_seed: bytes
    ) -> Encoded:
        """The weight goes first, encrypted too, the check values behind; nothing is rounded."""
        under, parameters = _key_of(at), at.study.parameters
        scaling = scaling_of(update, at.layers, parameters, weight)
        header = body_header(Kind.CONTRIBUTION, under.key, update.size)
        checks = SiteChecks(under.key, announcement.digest(), at.site)

        def pieces() -> Iterator[bytes]:
            with under.scratch() as scratch:
                encryptor = Encryptor(under.key, scratch)
                yield from contribution(encryptor, header, update, scaling, parameters.clip_norm, checks)

        return Encoded(pieces(), scaling.clips, parameters.clip_norm if scaling.clips else norm_of(update))

    def content(self, part: Part, encoded: Iterable[Octets], share_seed: bytes) -> Iterator[Octets]:
        yield from encoded

    def served(self, study: Study, announcement: Announcement, side: Side) -> tuple[ShareKind, int]:
        if side is not Side.A:
            raise UnknownResource("the sum of a round of ciphertexts is at side A alone")
        return ShareKind.CIPHERTEXT, 1 + study.model_dimension

    def open(self, at: AtSite, past: PastRelease, fetch: Fetch) -> NDArray[np.float32]:
        """Open a fetched sum: it is decrypted only once it is known to be the sum that both servers signed."""
        under, number = _key_of(at), past.announcement.round
        if past.announcement.ckks_key_id != under.key.id.hex():
            raise TranscriptMismatch(f"round {number}: the sum is under another key than this site's")
        signed = require_sum_release(past, at.roster)
        with under.spool() as spool, under.scratch() as scratch:
            taken = fetch(Side.A, lambda _, content: _kept(content, spool))
            if not hmac.compare_digest(taken, signed.sum_digest):
                raise TranscriptMismatch(
                    f"round {number}: server a served another sum than both servers signed; nothing of it was decrypted"
                )
            spool.seek(0)
            pieces, sites = iter(partial(spool.read, _READ_BYTES), b""), past.release_set.message.sites
            return open_sum(pieces, at.study, past.announcement.digest(), sites, under.key, scratch)


def open_sum(
    pieces: Iterable[bytes],
    study: Study,
    announcement_digest: str,
    sites: Sequence[str],
    key: SecretKey,
    scratch: Scratch,
) -> NDArray[np.float32]:
    """The average of exactly these sites' updates. Raises: as :func:`protocol.ckks.update.average`"""
    return average(
        pieces,
        Decryptor(key, scratch),
        body_header(Kind.SUM, key, study.model_dimension),
        SumChecks(key, announcement_digest, sites),
        study.least_weight,
        study.parameters.clip_norm,
    )


def _kept(content: Iterator[bytes], spool: BinaryIO) -> str:
    """All of it in the spool, from its beginning. -> SHA-256, hexadecimal"""
    spool.seek(0)
    spool.truncate()
    taken = hashlib.sha256()
    for piece in content:
        taken.update(piece)
        spool.write(piece)
    return taken.hexdigest()


# --- the key ----------------------------------------------------------------------------------------------------------


def _key_of(at: AtSite) -> UnderKey:
    if at.under is None:
        raise AnnouncementMismatch(_NO_KEY)
    return at.under


_NO_KEY: Final = "the requester's welcome brought no CKKS key: nothing can be sent or opened"


def require_scheme(study: Study) -> None:
    """TenSEAL is there if the study needs it. Raises: ConfigurationError, which names the extra"""
    if study.protection.plan.keyed:
        Scheme(CkksParameters())


def derive_key(seed: str | None, study_digest: str) -> SecretKey:
    """The study's key from its seed, hexadecimal. Raises: AnnouncementMismatch without one; ConfigurationError"""
    if seed is None:
        raise AnnouncementMismatch(_NO_KEY)
    return Scheme(CkksParameters()).secret_key(bytes.fromhex(seed), study_digest)


def welcomed_seed(
    study: Study, study_digest: str, seed: str | None, key_id: str | None, known: str | None
) -> str | None:
    """The seed that a welcome brings, with the id of its key; None for a study of shares. ``known`` came before.

    Raises: AnnouncementMismatch, without a key or with another than before; ConfigurationError, when this site derives
            another key than the requester
    """
    if not study.protection.plan.keyed:
        return None
    if known is not None and not hmac.compare_digest(known, seed or ""):
        raise AnnouncementMismatch("the requester sent another CKKS key than before; a study has one")
    if derive_key(seed, study_digest).id.hex() != key_id:
        raise ConfigurationError(
            "this site derives another CKKS key from the requester's seed than the requester did: install the same "
            "version of TenSEAL at both"
        )
    return seed


def key_id_in(purpose: Purpose, study: Study, key: SecretKey | None) -> str | None:
    """Return the key id that announcements of such rounds name, where the sites hold this key."""
    return key.id.hex() if key is not None and study.protection.of(purpose).plan.keyed else None


def check_key(announcement: Announcement, study: Study, key: SecretKey | None) -> None:
    """Updates travel as the study says, under the key that this site holds (None for a study of shares).

    Raises: AnnouncementMismatch
    """
    expected = key_id_in(announcement.purpose, study, key)
    if announcement.ckks_key_id != expected:
        raise AnnouncementMismatch(
            f"round {announcement.round} names the CKKS key {announcement.ckks_key_id}, this site expects {expected} "
            f"in a study with protection {study.protection.value!r}"
        )
