"""A whole study over HTTPS, then every byte that the servers stored and logged is searched for what they must not hold.

The secrets come from where they belong: the sites' journals, opened with the keys of whoever may open them.

The attack is ``servers-classify-all-they-store``; here every byte is searched for what is known to be secret.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from client_agent.learning.data import Examples, LocalData
from client_agent.learning.models import model_spec
from client_agent.site.events import read_metrics
from client_agent.site.journal import StudyJournal
from client_agent.study.outbox import create_study
from harness.engine.parties import OPERATOR_NAMES
from harness.federation.processes import FederationSpec, RunningFederation, SiteSpec
from protocol.channel.sealing import SealedReader
from protocol.messages.control import ContributionHeader, RuleName, RuleSpec, Study, TrainingSpec
from protocol.parameters import StudyParameters
from protocol.roster.keyfile import dump_party_keys
from protocol.sharing import Side
from tests.kit.present import present
from tests.ports import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.uncounted]
NAMES = ("requester", "c1", "c2", "c3")
ROUNDS = 3
WINDOW_BYTES = 24
"""Long enough that no other bytes are alike by chance; every secret is searched for by such pieces of it."""
BLOCK_BYTES, OVERLAP_BYTES = 4096, 128
"""Blocks of a file and their overlap, which is longer than whatever is searched for."""
LOOK_EVERY_S, KEEP_EVERY_S = 0.4, 0.01
OWN_FILES = ("keys.toml", "tls.key")


@dataclass
class Evidence:
    """Evidence collected while the study ran: the sites' secrets by side, and all that each server stored."""

    shares: dict[Side, dict[str, bytes]] = field(default_factory=lambda: {side: {} for side in Side})
    salts: dict[Side, dict[str, bytes]] = field(default_factory=lambda: {side: {} for side in Side})
    updates: dict[str, bytes] = field(default_factory=dict)
    weight_lists: dict[str, bytes] = field(default_factory=dict)
    stored: dict[Side, dict[str, bytes]] = field(default_factory=lambda: {side: {} for side in Side})


def read(path: Path) -> bytes | None:
    """A file's bytes, unless it has just been deleted."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def journals(federation: RunningFederation) -> Iterator[Path]:
    for name in NAMES:
        yield from StudyJournal(federation.state(name), "searched").folder.glob("rounds/*/**/*")


def look(federation: RunningFederation, evidence: Evidence) -> None:
    """Take what is there now: the databases change all the time."""
    for side in Side:
        for path in sorted((federation.folder / OPERATOR_NAMES[side]).rglob("*")):
            take(federation, evidence, path, read(path) if path.is_file() else None)


def keep(federation: RunningFederation, folder: Path, kept: dict[tuple[Path, int], Path]) -> None:
    """A second name for every file that is there now: servers delete shares, and sites old rounds, in no time."""
    places = [federation.folder / OPERATOR_NAMES[side] for side in Side]
    for path in (*journals(federation), *(found for place in places for found in place.rglob("*"))):
        with suppress(FileNotFoundError):
            if path.is_file() and (path, path.stat().st_ino) not in kept:
                second = folder / str(len(kept))
                second.hardlink_to(path)
                kept[path, second.stat().st_ino] = second


def take(federation: RunningFederation, evidence: Evidence, path: Path, content: bytes | None) -> None:
    """Take a server's file as it is, and the secrets of a site's file."""
    if not content or path.name in OWN_FILES:
        return
    for side in Side:
        place = federation.folder / OPERATOR_NAMES[side]
        if path.is_relative_to(place):
            evidence.stored[side][f"{path.relative_to(place)} {hashlib.sha256(content).hexdigest()}"] = content
    for name in NAMES:
        if path.is_relative_to(federation.state(name)):
            note(federation, evidence, f"{name} {path.parent.name} {path.parent.parent.name}", path, content)


def note(federation: RunningFederation, evidence: Evidence, label: str, path: Path, content: bytes) -> None:
    if path.name in {f"{side}.sealed" for side in Side}:
        side = Side(path.stem)
        reader = SealedReader(federation.parties.keys_of(OPERATOR_NAMES[side]).sealing)
        plain = b"".join([*reader.feed(content), reader.finish()])
        assert ContributionHeader.parse(reader.header or b"").side is side
        evidence.shares[side][label] = plain
        evidence.salts[side][label] = reader.salt or b""
    elif path.name == "encoded.ring":
        evidence.updates[label] = content
    elif path.name == "decision.json":
        found = json.loads(content)["weight_list"]
        if found is not None:
            evidence.weight_lists[label] = bytes.fromhex(found["salt"])


def forms(secret: bytes) -> list[bytes]:
    """A secret as raw bytes, hex and base64, cut into pieces that are found wherever they stand."""
    pieces = [secret[start : start + WINDOW_BYTES] for start in {0, (len(secret) - WINDOW_BYTES) // 2}]
    found = []
    for piece in pieces:
        found += [piece, piece.hex().encode(), piece.hex().upper().encode()]
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            found += [encode(piece)]
    return found


def where(secret: bytes, stored: Mapping[str, bytes]) -> list[str]:
    found = forms(secret)
    return [name for name, content in stored.items() for form in found if form in content]


def distinct(stored: Mapping[str, bytes]) -> dict[str, bytes]:
    """Each block once, with what follows it: a database is much the same whenever one looks at it."""
    seen: set[bytes] = set()
    found = {}
    for name, content in stored.items():
        starts = range(0, len(content), BLOCK_BYTES)
        blocks = dict.fromkeys(content[start : start + BLOCK_BYTES + OVERLAP_BYTES] for start in starts)
        found[name] = b"".join(block for block in blocks if block not in seen)
        seen |= blocks.keys()
    return found


def site_data(seed: int) -> LocalData:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    examples = Examples(x, (x[:, 0] > 0).astype(np.int64))
    return LocalData(examples, examples)


@dataclass(frozen=True)
class Searched:
    federation: RunningFederation
    evidence: Evidence


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Searched]:
    """A study from its creation to its end, looked at all the time."""
    sites = tuple(SiteSpec(name, site_data(i)) for i, name in enumerate(NAMES))
    spec = FederationSpec("search", NAMES[0], sites, ports=free_ports(), bootstrap_samples=0)
    evidence = Evidence()
    with RunningFederation(spec, tmp_path_factory.mktemp("search")) as federation:
        study = Study(
            name="searched",
            roster_digest=federation.parties.roster.message.digest(),
            parameters=StudyParameters(dimension=12, clip_norm=4.0, least_contributors=3),
            rule=RuleSpec(name=RuleName.WEIGHT_EROSION),
            model=model_spec("linear", (5,), (), 2),
            training=TrainingSpec(batch_size=16),
            rounds=ROUNDS,
            round_deadline_s=60.0,
        )
        create_study(federation.state(NAMES[0]), study)
        folder, kept = federation.folder / "kept", dict[tuple[Path, int], Path]()
        folder.mkdir()
        now = time.monotonic()
        deadline, looks_at = now + 90, now
        while not all(finished(federation, name) for name in NAMES):
            assert time.monotonic() < deadline, federation.tails()
            keep(federation, folder, kept)
            if time.monotonic() > looks_at:
                federation.check()
                look(federation, evidence)
                looks_at = time.monotonic() + LOOK_EVERY_S
            time.sleep(KEEP_EVERY_S)
        look(federation, evidence)
        for (path, _), second in kept.items():
            take(federation, evidence, path, second.read_bytes())
        evidence.stored = {side: distinct(stored) for side, stored in evidence.stored.items()}
        yield Searched(federation, evidence)


def finished(federation: RunningFederation, name: str) -> bool:
    state = StudyJournal(federation.state(name), "searched").site_state()
    return state is not None and state.finished is not None


def test_the_study_was_whole_and_the_search_finds_what_is_there(searched: Searched) -> None:
    """Each server's own shares and its agreed sets are found, so that finding nothing below means something."""
    evidence = searched.evidence
    metrics = StudyJournal(searched.federation.state(NAMES[0]), "searched").folder / "metrics.jsonl"
    assert len(read_metrics(metrics)) == ROUNDS
    assert len(evidence.updates) >= len(NAMES)
    assert len(evidence.weight_lists) >= len(NAMES) - 1
    for side in Side:
        assert {len(share) for share in evidence.shares[side].values()} == {32, 96}
        own = [name for name, share in evidence.shares[side].items() if where(share, evidence.stored[side])]
        assert {name.split()[0] for name in own} == set(NAMES)
        assert any("server.db" in name for name in evidence.stored[side])
        assert any(b"agreed_set" in content for content in evidence.stored[side].values())
        assert any(
            name.startswith(("log", "process", "server.log")) or ".log" in name for name in evidence.stored[side]
        )


@pytest.mark.parametrize("side", list(Side))
def test_no_share_of_the_other_side(searched: Searched, side: Side) -> None:
    evidence = searched.evidence
    for label, share in evidence.shares[side.other].items():
        assert where(share, evidence.stored[side]) == [], label


@pytest.mark.parametrize("side", list(Side))
def test_no_salt_of_any_side_and_none_of_a_weight_list(searched: Searched, side: Side) -> None:
    evidence = searched.evidence
    salts = [salt for held in evidence.salts.values() for salt in held.values()] + list(evidence.weight_lists.values())
    assert salts
    for salt in salts:
        assert where(salt, evidence.stored[side]) == []


@pytest.mark.parametrize("side", list(Side))
def test_no_update_no_model_and_no_weights(searched: Searched, side: Side) -> None:
    federation, stored = searched.federation, searched.evidence.stored[side]
    for label, update in searched.evidence.updates.items():
        assert where(update, stored) == [], label
        signed = np.frombuffer(update, dtype="<i8")
        for kind in ("<f4", "<f8"):
            assert where((signed / 2.0**19).astype(kind).tobytes(), stored) == [], label
    for name in NAMES:
        journal = StudyJournal(federation.state(name), "searched")
        state = present(journal.site_state())
        model = journal.load_model(present(state.model_version))
        for kind in ("<f4", "<f8"):
            assert where(model.astype(kind).tobytes(), stored) == []
    assert not any(b'"numerator"' in content or b'"weights"' in content for content in stored.values())


@pytest.mark.parametrize("side", list(Side))
def test_no_key_of_anybody(searched: Searched, side: Side) -> None:
    """Neither the sites' common key nor anybody's private keys, the server's own included."""
    federation, stored = searched.federation, searched.evidence.stored[side]
    state = present(StudyJournal(federation.state("c1"), "searched").site_state())
    assert where(bytes.fromhex(present(state.site_key)), stored) == []
    for keys in federation.parties.keys:
        written = dump_party_keys(keys)
        secrets = [line.split('"')[1] for line in written.splitlines() if "key" in line and '"' in line]
        assert len(secrets) >= 2
        for secret in secrets:
            assert where(bytes.fromhex(secret), stored) == [], keys.name
