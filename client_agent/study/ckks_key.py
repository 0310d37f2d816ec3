"""The CKKS key of a study at a site: drawn by the requester, sent with the welcome (docs/protocol.md 11)."""

from __future__ import annotations

from client_agent.site.letter import Welcome
from protocol.ckks.parameters import CkksParameters
from protocol.ckks.scheme import KEY_SEED_BYTES, Scheme, SecretKey
from protocol.errors import AnnouncementMismatch, ConfigurationError
from protocol.wire.messages import Announcement, Study

SEED_BYTES = KEY_SEED_BYTES


def require_ckks(study: Study) -> None:
    """TenSEAL is there if the study needs it. Raises: ConfigurationError, which names the extra"""
    if study.protection.plan.keyed:
        Scheme(CkksParameters())


def derive_key(seed: str | None, study_digest: str) -> SecretKey:
    """The study's key from its seed, hexadecimal. Raises: AnnouncementMismatch without one; ConfigurationError"""
    if seed is None:
        raise AnnouncementMismatch("the requester's welcome brought no CKKS key: nothing can be sent or opened")
    return Scheme(CkksParameters()).secret_key(bytes.fromhex(seed), study_digest)


def welcomed_seed(welcome: Welcome, study: Study, known: str | None) -> str | None:
    """The seed that a welcome brings; None for a study of shares.

    Raises: AnnouncementMismatch, without a key or with another than before; ConfigurationError, when this site derives
            another key than the requester
    """
    if not study.protection.plan.keyed:
        return None
    seed = welcome.ckks_key_seed
    if known is not None and known != seed:
        raise AnnouncementMismatch("the requester sent another CKKS key than before; a study has one")
    if derive_key(seed, welcome.study_digest).id.hex() != welcome.ckks_key_id:
        raise ConfigurationError(
            "this site derives another CKKS key from the requester's seed than the requester did: install the same "
            "version of TenSEAL at both"
        )
    return seed


def check_encrypted(announcement: Announcement, study: Study, key: SecretKey | None) -> None:
    """Updates travel as the study says, under the key that this site holds (None for a study of shares).

    Raises: AnnouncementMismatch
    """
    expected = key.id.hex() if key is not None and announcement.purpose.plan.steps_model else None
    if announcement.ckks_key_id != expected:
        raise AnnouncementMismatch(
            f"round {announcement.round} names the CKKS key {announcement.ckks_key_id}, this site expects {expected} "
            f"in a study with protection {study.protection.value!r}"
        )
