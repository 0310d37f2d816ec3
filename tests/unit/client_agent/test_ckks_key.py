"""Which CKKS key a site derives from its welcome, and which announcements name it (docs/protocol.md 11)."""

from __future__ import annotations

import sys

import pytest

from client_agent.site.letter import Welcome
from protocol.errors import AnnouncementMismatch, ConfigurationError
from protocol.messages.control import Purpose, Study
from protocol.parameters import Needs
from protocol.protection import ckks
from protocol.protection.ckks import check_key, require_scheme
from tests.unit.client_agent.federation import DIGEST, announcement
from tests.unit.client_agent.test_ckks_site import ANNOUNCED, ENCRYPTED_STUDY, KEY, SEED, SHARES, SITE


def welcome(seed: str | None = SEED, key_id: str | None = KEY.id.hex()) -> Welcome:
    return Welcome(
        study_digest=DIGEST,
        site=SITE,
        model_version=0,
        checkpoint_digest=DIGEST,
        site_key=DIGEST,
        content_key=DIGEST,
        ckks_key_seed=seed,
        ckks_key_id=key_id,
    )


def welcomed_seed(brought: Welcome, study: Study, known: str | None) -> str | None:
    return ckks.welcomed_seed(study, brought.study_digest, brought.ckks_key_seed, brought.ckks_key_id, known)


def test_a_welcome_brings_the_seed_of_the_key_that_it_names() -> None:
    assert welcomed_seed(welcome(), ENCRYPTED_STUDY, None) == SEED
    assert welcomed_seed(welcome(), ENCRYPTED_STUDY, SEED) == SEED
    assert welcomed_seed(welcome(None, None), SHARES, None) is None
    assert SEED not in repr(welcome())


def test_a_welcome_without_a_key_or_with_another_than_before_is_refused() -> None:
    with pytest.raises(AnnouncementMismatch, match="brought no CKKS key"):
        welcomed_seed(welcome(None), ENCRYPTED_STUDY, None)
    with pytest.raises(AnnouncementMismatch, match="another CKKS key than before"):
        welcomed_seed(welcome("08" * 32), ENCRYPTED_STUDY, SEED)


def test_a_site_that_derives_another_key_than_the_requester_stops() -> None:
    with pytest.raises(ConfigurationError, match="the same version of TenSEAL"):
        welcomed_seed(welcome(key_id="ab" * 16), ENCRYPTED_STUDY, None)


def test_an_announcement_names_the_sites_key_exactly_for_encrypted_updates() -> None:
    shared = announcement()
    counts = announcement(opens=Needs.NOTHING).model_copy(update={"purpose": Purpose.COUNTS})
    check_key(ANNOUNCED, ENCRYPTED_STUDY, KEY)
    check_key(counts, ENCRYPTED_STUDY, KEY)
    check_key(shared, SHARES, None)
    other = ANNOUNCED.model_copy(update={"ckks_key_id": "ab" * 16})
    for wrong, of, key in (
        (shared, ENCRYPTED_STUDY, KEY),
        (other, ENCRYPTED_STUDY, KEY),
        (ANNOUNCED, SHARES, None),
    ):
        with pytest.raises(AnnouncementMismatch, match="names the CKKS key"):
            check_key(wrong, of, key)


def test_without_tenseal_the_error_names_the_extra_and_shares_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tenseal.sealapi", None)
    require_scheme(SHARES)
    with pytest.raises(ConfigurationError, match=r"moiety\[he\]"):
        require_scheme(ENCRYPTED_STUDY)
