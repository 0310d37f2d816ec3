"""Whose seed it is, and that every attempt has a key of its own (docs/protocol.md 15)."""

from __future__ import annotations

import pytest

from protocol.errors import CommitmentMismatch, MalformedMessage
from protocol.messages.control import Announcement
from protocol.tags import attempt_key, kept_key, require_seed, require_shown, seed_hash, shown_seed
from tests.unit.parties import announcement

STUDY, SEED = "d" * 64, bytes(range(32))


def tagged(number: int = 1, seed: bytes = SEED) -> Announcement:
    return announcement(STUDY, number, tag_seed_hash=seed_hash(STUDY, number, seed))


def test_the_announced_seed_is_taken():
    assert require_seed(tagged(), SEED.hex()) == SEED
    assert require_seed(announcement(STUDY), None) is None
    assert require_shown(tagged(), shown_seed(SEED).hex()) == shown_seed(SEED)


@pytest.mark.parametrize(
    ("of", "seed"),
    [
        (tagged(), None),
        (announcement(STUDY), SEED.hex()),
        (tagged(), bytes(32).hex()),
        (tagged(seed=bytes(32)), SEED.hex()),
        (tagged(2).model_copy(update={"round": 1}), SEED.hex()),
    ],
    ids=["none", "one too many", "another", "another hash", "another round's"],
)
def test_another_seed_is_refused(of, seed):
    with pytest.raises(CommitmentMismatch, match="is not the announced one"):
        require_seed(of, seed)


@pytest.mark.parametrize("of", [tagged(), announcement(STUDY)], ids=["the drawn one", "one too many"])
def test_a_server_takes_the_shown_seed_alone(of):
    with pytest.raises(CommitmentMismatch, match="is not the announced one"):
        require_shown(of, SEED.hex())


def test_a_seed_has_32_bytes():
    with pytest.raises(MalformedMessage, match="a tag seed has 31 bytes"):
        seed_hash(STUDY, 1, bytes(31))


def test_every_study_round_attempt_and_seed_has_its_own_key():
    places = [(study, number, attempt) for study in (STUDY, "e" * 64) for number in (1, 11) for attempt in (1, 11)]
    keys = {attempt_key(announcement(study, number), attempt, SEED) for study, number, attempt in places}
    keys |= {kept_key(announcement(study, number), attempt, SEED) for study, number, attempt in places}
    keys |= {of(announcement(STUDY, 1), 1, bytes(32)) for of in (attempt_key, kept_key)}
    assert len(keys) == 2 * len(places) + 2
