"""Randomness, durable files, journal and letters."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest

from client_agent.site.connections import Site
from client_agent.site.identity import load_identity
from client_agent.site.journal import SiteState, StudyJournal
from client_agent.site.letters import Welcome, require_same
from host.files import private_folder, replacing_together, write_durably
from host.network import is_loopback_url
from host.randomness import SystemRandomness, site_randomness
from protocol.errors import BadSignature, BrokenSeal, ConfigurationError
from protocol.messages.letter import open_letter, seal_letter
from tests.kit.present import present
from tests.unit.client_agent.federation import DIGEST, ROSTER, keys
from tests.unit.client_agent.test_daemon import settings

# --- state ------------------------------------------------------------------------------------------------------------


def test_seeded_bytes_depend_on_seed_party_and_label_only() -> None:
    here = ("https://127.0.0.1:1", "https://[::1]:2")
    one, again, other = (site_randomness(seed, "c1", here) for seed in (1, 1, -2))
    drawn = one.bytes(48, "a")
    assert one.bytes(48, "b") != drawn
    assert again.bytes(48, "a") == drawn
    assert other.bytes(48, "a") != drawn
    assert site_randomness(1, "c2", here).bytes(48, "a") != drawn
    assert "root" not in repr(one)


def test_a_seed_is_refused_away_from_loopback() -> None:
    with pytest.raises(ConfigurationError, match=r"https://a\.example is not on this machine"):
        site_randomness(1, "c1", ("https://127.0.0.1:1", "https://a.example"))
    fresh = site_randomness(None, "c1", ("https://a.example",))
    assert isinstance(fresh, SystemRandomness)
    assert fresh.bytes(32, "a") != fresh.bytes(32, "a")
    assert is_loopback_url("https://localhost:1")
    assert not is_loopback_url("https://localhost.example:1")


def test_files_take_their_places_together_or_not_at_all(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("first", "second")]
    write_durably(paths[0], b"old")

    def killed() -> None:
        with replacing_together(*paths) as (first, _):
            first.write(b"new")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        killed()
    assert paths[0].read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["first"]
    with replacing_together(*paths) as files:
        for number, file in enumerate(files):
            file.write(b"new" * number)
    assert [path.read_bytes() for path in paths] == [b"", b"new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


def test_the_journal_keeps_state_and_the_last_two_models(tmp_path: Path) -> None:
    journal = StudyJournal(tmp_path, "unit")
    assert journal.site_state() is None
    state = SiteState(study_digest=DIGEST, training_seed=77, site_key="11" * 32, model_version=2)
    journal.write_site_state(state)
    assert StudyJournal(tmp_path, "unit").site_state() == state
    assert "11" * 32 not in repr(state)
    vector = np.linspace(-1, 1, 9, dtype=np.float32)
    for version in range(3):
        journal.save_model(version, vector * version, DIGEST)
    np.testing.assert_array_equal(journal.load_model(2), vector * 2)
    with pytest.raises(ConfigurationError, match=r"model-000000\.safetensors is missing"):
        journal.load_model(0)


def test_moments_are_kept_beside_the_model_and_are_no_part_of_it(tmp_path: Path) -> None:
    journal, kept = StudyJournal(tmp_path, "one"), np.arange(12, dtype=np.float32)
    journal.save_model(1, kept, DIGEST, 4)
    np.testing.assert_array_equal(journal.load_model(1), kept[:4])
    np.testing.assert_array_equal(journal.load_kept(1), kept)
    journal.save_model(2, kept[:4], DIGEST, 4)
    np.testing.assert_array_equal(journal.load_kept(2), kept[:4])
    with pytest.raises(ConfigurationError, match="is missing"):
        journal.load_kept(3)


def test_equal_models_are_equal_files(tmp_path: Path) -> None:
    vector = np.linspace(-1, 1, 9, dtype=np.float32)
    files = []
    for name in ("one", "two"):
        journal = StudyJournal(tmp_path, name)
        journal.save_model(3, vector, DIGEST)
        files.append((journal.folder / "model-000003.safetensors").read_bytes())
    assert files[0] == files[1]


def test_a_damaged_state_file_is_named_and_its_content_is_not_shown(tmp_path: Path) -> None:
    journal = StudyJournal(tmp_path, "unit")
    (journal.folder / "site.json").write_text('{"site_key": 5, "study_digest": "secret"}')
    with pytest.raises(ConfigurationError, match=r"site\.json: not a state file") as caught:
        journal.site_state()
    assert "secret" not in caught.value.detail


def test_old_rounds_are_forgotten(tmp_path: Path) -> None:
    journal = StudyJournal(tmp_path, "unit")
    journal.forget_rounds_before(9)
    for number in (1, 2, 3, 4):
        (journal.attempt_folder(number, 1) / "a.sealed").write_bytes(b"x")
    journal.forget_rounds_before(4)
    assert sorted(p.name for p in (journal.folder / "rounds").iterdir()) == ["000003", "000004"]


def test_a_letter_opens_only_where_it_was_written_for() -> None:
    welcome = Welcome(
        study_digest=DIGEST,
        site="c1",
        model_version=3,
        checkpoint_digest=DIGEST,
        site_key="11" * 32,
        content_key="22" * 32,
    )
    assert "11" * 32 not in repr(welcome)
    party = present(ROSTER.party("c1"))
    sealed = seal_letter(welcome, "welcome", DIGEST, "r0", party, 3)

    def opened(
        kind: str = "welcome", study: str = DIGEST, sender: str = "r0", recipient: str = "c1", number: int = 3
    ) -> Welcome:
        return open_letter(sealed, Welcome, kind, study, sender, recipient, number, keys(recipient).sealing)

    assert opened() == welcome
    for wrong in ({"kind": "weights"}, {"study": "00" * 32}, {"sender": "c2"}, {"recipient": "c2"}, {"number": 4}):
        with pytest.raises(BrokenSeal):
            opened(**wrong)
    require_same("site", "c1", "c1")
    with pytest.raises(BadSignature, match="another site: found c2, expected c1"):
        require_same("site", "c2", "c1")


# --- private files ----------------------------------------------------------------------------------------------------


def test_a_state_folder_that_was_there_before_is_taken_back(tmp_path: Path) -> None:
    made = settings(tmp_path, "c1")
    made.state_dir.mkdir()
    made.state_dir.chmod(0o755)
    with Site(made):
        assert stat.S_IMODE(made.state_dir.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    made = settings(tmp_path, "c1")
    made.keys.chmod(mode)
    with pytest.raises(ConfigurationError, match=rf"mode {mode:04o}\): chmod 600 .*keys\.toml"):
        load_identity(made)


def test_a_folder_that_cannot_be_ones_own_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"file: cannot be made this user's alone.*chmod 700"):
        private_folder(tmp_path / "file")
