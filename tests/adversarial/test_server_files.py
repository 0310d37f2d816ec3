"""A whole study, then every byte that the servers stored and logged is searched for what they must not hold.

Real servers and agents in memory: after every answer all files get a second name, as servers delete shares, and sites
old rounds. The secrets come from where they belong: the sites' journals, opened with the keys of whoever may open them.

The attack is ``servers-classify-all-they-store``; here every byte is searched for what is known to be secret.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from structlog.testing import capture_logs

from harness.attack.attack import replaced
from harness.engine.parties import OPERATOR_NAMES
from harness.federation import server_apps
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import light_learner
from protocol.channel.sealing import SealedReader
from protocol.messages.control import ContributionHeader
from protocol.policy.site_policy import SitePolicy
from protocol.roster.keyfile import dump_party_keys
from protocol.sharing import Side
from tests.integration.agents import EROSION, REQUESTER, finished, journal, rounds_of, spec, study_for
from tests.kit.present import present

pytestmark = [pytest.mark.slow, pytest.mark.uncounted]
STUDY = "searched"
NAMES = (REQUESTER, "c1", "c2", "c3")
ROUNDS = 3
WINDOW_BYTES = 24
"""Long enough that no other bytes are alike by chance; every secret is searched for by such pieces of it."""
BLOCK_BYTES, OVERLAP_BYTES = 4096, 128
"""Blocks of a file and their overlap, which is longer than whatever is searched for."""
OWN_FILES = ("keys.toml", "tls.key")
LOOK_EVERY = 20
"""Answers after which the databases are read, which have no second name that would keep what is overwritten."""


@dataclass
class Evidence:
    """Evidence collected while the study ran: the sites' secrets by side, and all that each server stored."""

    shares: dict[Side, dict[str, bytes]] = field(default_factory=lambda: {side: {} for side in Side})
    salts: dict[Side, dict[str, bytes]] = field(default_factory=lambda: {side: {} for side in Side})
    updates: dict[str, bytes] = field(default_factory=dict)
    weight_lists: dict[str, bytes] = field(default_factory=dict)
    stored: dict[Side, dict[str, bytes]] = field(default_factory=lambda: {side: {} for side in Side})


@dataclass
class Searched:
    federation: InMemoryFederation
    folder: Path
    evidence: Evidence = field(default_factory=Evidence)
    kept: dict[tuple[Path, int], Path] = field(default_factory=dict)
    """Second names, by a file's first one and its inode."""

    def place(self, side: Side) -> Path:
        return self.federation.folder / OPERATOR_NAMES[side]

    def look(self) -> None:
        for side in Side:
            for path in self.place(side).rglob("server.db*"):
                with suppress(FileNotFoundError):
                    self.take(path, path.read_bytes())

    def keep(self) -> None:
        """Give every file that is there now a second name."""
        rounds = (journal(self.federation, name, STUDY).folder.glob("rounds/*/**/*") for name in NAMES)
        for path in itertools.chain(*rounds, *(self.place(side).rglob("*") for side in Side)):
            with suppress(FileNotFoundError):
                if path.is_file() and (path, path.stat().st_ino) not in self.kept:
                    second = self.folder / str(len(self.kept))
                    second.hardlink_to(path)
                    self.kept[path, second.stat().st_ino] = second

    def take(self, path: Path, content: bytes) -> None:
        """Take a server's file as it is, and the secrets of a site's file."""
        if not content or path.name in OWN_FILES:
            return
        for side in Side:
            if path.is_relative_to(self.place(side)):
                label = f"{path.relative_to(self.place(side))} {hashlib.sha256(content).hexdigest()}"
                self.evidence.stored[side][label] = content
        for name in NAMES:
            if path.is_relative_to(self.federation.state(name)):
                self.note(f"{name} {path.parent.name} {path.parent.parent.name}", path, content)

    def note(self, label: str, path: Path, content: bytes) -> None:
        if path.name in {f"{side}.sealed" for side in Side}:
            side = Side(path.stem)
            reader = SealedReader(self.federation.parties.keys_of(OPERATOR_NAMES[side]).sealing)
            plain = b"".join([*reader.feed(content), reader.finish()])
            assert ContributionHeader.parse(reader.header or b"").side is side
            self.evidence.shares[side][label] = plain
            self.evidence.salts[side][label] = reader.salt or b""
        elif path.name == "encoded.ring":
            self.evidence.updates[label] = content
        elif path.name == "decision.json":
            found = json.loads(content)["weight_list"]
            if found is not None:
                self.evidence.weight_lists[label] = bytes.fromhex(found["salt"])


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


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Searched]:
    """A study from its creation to its end, looked at after every answer."""
    policies = dict.fromkeys(NAMES, SitePolicy(least_isolation=0.0))
    carry, answers = server_apps._answer, itertools.count(1)
    with (
        capture_logs() as logs,
        InMemoryFederation(spec(policies), tmp_path_factory.mktemp("search"), light_learner) as federation,
    ):
        made = Searched(federation, tmp_path_factory.mktemp("kept"))

        async def keeping(app: FastAPI, request: httpx.Request) -> httpx.Response:
            answer = await carry(app, request)
            made.keep()
            if next(answers) % LOOK_EVERY == 0:
                made.look()
            return answer

        with replaced(server_apps, "_answer", keeping), federation.agents():
            federation.hand_in(study_for(federation, STUDY, EROSION, ROUNDS, 60.0))
            federation.until("the end", finished(federation, STUDY, *NAMES))
        made.look()
        for (path, _), second in made.kept.items():
            made.take(path, second.read_bytes())
        logged = json.dumps(logs, default=str).encode()
        made.evidence.stored = {
            side: distinct({**stored, "logs": logged}) for side, stored in made.evidence.stored.items()
        }
        yield made


def test_the_study_was_whole_and_the_search_finds_what_is_there(searched: Searched) -> None:
    """Each server's own shares and its agreed sets are found, so that finding nothing below means something."""
    evidence = searched.evidence
    assert len(rounds_of(searched.federation, REQUESTER, STUDY)) == ROUNDS
    assert len(evidence.updates) >= len(NAMES)
    assert len(evidence.weight_lists) >= len(NAMES) - 1
    for side in Side:
        assert {len(share) for share in evidence.shares[side].values()} == {32, 96}
        own = [name for name, share in evidence.shares[side].items() if where(share, evidence.stored[side])]
        assert {name.split()[0] for name in own} == set(NAMES)
        assert any("server.db" in name for name in evidence.stored[side])
        assert any(b"agreed_set" in content for content in evidence.stored[side].values())
        assert b'"event": "connected"' in evidence.stored[side]["logs"]


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
        own = journal(federation, name, STUDY)
        model = own.load_model(present(present(own.site_state()).model_version))
        for kind in ("<f4", "<f8"):
            assert where(model.astype(kind).tobytes(), stored) == []
    assert not any(b'"numerator"' in content or b'"weights"' in content for content in stored.values())


@pytest.mark.parametrize("side", list(Side))
def test_no_key_of_anybody(searched: Searched, side: Side) -> None:
    """Neither the sites' common key nor anybody's private keys, the server's own included."""
    federation, stored = searched.federation, searched.evidence.stored[side]
    state = present(journal(federation, "c1", STUDY).site_state())
    assert where(bytes.fromhex(present(state.site_key)), stored) == []
    for keys in federation.parties.keys:
        written = dump_party_keys(keys)
        secrets = [line.split('"')[1] for line in written.splitlines() if "key" in line and '"' in line]
        assert len(secrets) >= 2
        for secret in secrets:
            assert where(bytes.fromhex(secret), stored) == [], keys.name
