"""Letters that a server keeps, how long, and that it takes none it has no room for.

Floods of them are the attacks ``letters-...``.

Both real applications run in one process, without sockets.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from harness.attack.scripted_requester import ScriptedRequester, make_study
from harness.federation.server_apps import ServersInMemory
from protocol.channel.sealing import sealed_length, sealed_small_length
from protocol.messages import paths
from protocol.messages.control import RoundState, StudyEndState
from protocol.messages.letter import NOTICE_BYTES, LetterKind, most_bytes
from protocol.sharing import Side
from servers.server import Server
from servers.store import files
from tests.kit.present import present

SITES = [f"hospital-{i}" for i in range(5)]
REQUESTER, CONTRIBUTOR = SITES[0], SITES[1]
NOTICE = sealed_small_length(NOTICE_BYTES)
D = 200


class Flood:
    """A new study at both servers, and requests of its sites."""

    def __init__(self, sites: ScriptedRequester[ServersInMemory]) -> None:
        self.sites = sites
        self.server: Server = sites.federation.apps.apps[Side.A].state.server
        self._before = set(self._folder())

    def put(self, sender: str, topic: str, recipient: str, body: bytes, *, chunked: bool = False) -> httpx.Response:
        """One letter; a chunked one states no length."""
        client, path = self.sites.clients[sender], self.sites.path(paths.MAIL, topic=topic, recipient=recipient)
        return client.post(client.enclose(Side.A, "PUT", path, body), chunked=chunked)

    def shown(self, site: str) -> tuple[str, ...]:
        return self.sites.view(Side.A, site).mail

    def files(self) -> list[Path]:
        """Server A's files of this study."""
        return sorted(set(self._folder()) - self._before)

    def _folder(self) -> Iterator[Path]:
        return self.server.files.path("").iterdir()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServersInMemory]:
    with ServersInMemory(tmp_path_factory.mktemp("flood"), SITES) as running:
        yield running


@pytest.fixture
def flood(servers: ServersInMemory) -> Iterator[Flood]:
    sites = ScriptedRequester(servers, make_study(servers, D, name=f"trial-{secrets.token_hex(4)}", rounds=20))
    sites.create()
    yield Flood(sites)
    sites.close()


def code(response: httpx.Response) -> str:
    return str(response.json()["code"])


def test_an_ended_study_takes_no_letters(flood: Flood) -> None:
    first = secrets.token_bytes(NOTICE)
    assert flood.put(CONTRIBUTOR, "refusal", REQUESTER, first).status_code == 204
    flood.sites.end(StudyEndState.CANCELLED)
    assert code(flood.put(SITES[2], "refusal", REQUESTER, bytes(NOTICE))) == "wrong_round"
    assert flood.put(CONTRIBUTOR, "refusal", REQUESTER, first).status_code == 204, "the same bytes, the same answer"


def test_letters_that_nobody_reads_any_more_are_deleted(flood: Flood) -> None:
    """However many rounds: a view shows letters of few rounds, one welcome a site, and the checkpoints they name."""
    study, server = flood.sites.study, flood.server
    checkpoint, letter = bytes(sealed_length(4 * D)), b"weights"
    for number in range(1, 8):
        version = number - 1
        assert flood.put(REQUESTER, f"checkpoint-{version}", paths.EVERY_SITE, checkpoint).status_code == 204
        for site in (SITES[1], SITES[2]) if number > 1 else SITES[1:]:
            assert flood.put(REQUESTER, f"welcome-{version}", site, b"welcome").status_code == 204
        for site in SITES[1:]:
            assert flood.put(REQUESTER, f"weights-{number}", site, letter).status_code == 204
        flood.sites.announce(flood.sites.announcement(number, listed=SITES[1:]), sides=[Side.A])
        for site in SITES[1:-1]:  # the last one is waited for: with its word too the server would end the round
            assert flood.put(site, f"decline-{number}", REQUESTER, bytes(NOTICE)).status_code == 204
        record = present(server.store.current_round(study.digest()))
        server.store.change_round(record.key, lambda r: replace(r, state=RoundState.RELEASED))
    assert len(flood.shown(REQUESTER)) == 2 * 3
    assert sorted(flood.shown(SITES[1])) == sorted(
        [f"{topic}/{REQUESTER}" for topic in ("weights-6", "weights-7", "welcome-6")]
        + [f"checkpoint-{version}/{REQUESTER}" for version in (0, 5, 6)]
    )
    assert f"welcome-0/{REQUESTER}" in flood.shown(SITES[3])
    assert len(flood.files()) == 4 + 4 + 3 + 3 + 4 + 3


def test_a_chunked_upload_finds_no_room_while_it_is_written(flood: Flood, monkeypatch: pytest.MonkeyPatch) -> None:
    """It states no length, so nothing could be reserved for it; the disk was filled to the last byte."""
    reserve, body = 2**26, bytes(sealed_length(4 * D))
    disk = SimpleNamespace(free=reserve + len(body) - 1)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda folder: disk)  # type: ignore[attr-defined]
    answer = flood.put(REQUESTER, "checkpoint-0", paths.EVERY_SITE, body, chunked=True)
    assert (answer.status_code, code(answer)) == (507, "storage_full")
    assert flood.files() == []
    disk.free += 1
    assert flood.put(REQUESTER, "checkpoint-0", paths.EVERY_SITE, body, chunked=True).status_code == 204


def test_a_letter_of_a_large_federation_fits_its_cap(flood: Flood) -> None:
    """The cap grows with the roster, and stays below what anybody parses."""
    study: Any = flood.sites.study
    small, large = (most_bytes(LetterKind.WEIGHTS, study, sites) for sites in (5, 1000))
    assert small < 2**17
    assert small < large <= 4 * 2**20 + 2000
