"""A large contribution goes in parts; one that breaks goes on where it was, and nothing acknowledged is sent again."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client_agent.net import server_client
from client_agent.net.ledger import LedgerEntry, read_ledger
from client_agent.net.server_client import ServerClient
from client_agent.site.events import RoundEnd
from harness.federation.learners import light_study
from protocol.errors import Unavailable
from protocol.messages.control import ContributionHeader
from servers.store import upload_parts
from servers.store.upload_parts import ShareInParts
from tests.integration.agents import FEDAVG, final_model, finished, in_memory, party_of, rounds_of, run_to_end

SITES = ("requester", "c1", "c2", "c3")
DIMENSION = 10 * 2**15 + 5
PART = 2**18 + 16
Run = tuple[str, dict[str, list[LedgerEntry]]]


@pytest.fixture(scope="module", autouse=True)
def small_parts() -> Iterator[None]:
    """A chunk a part, so that a vector of 2.6 MB has eleven."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(server_client, "LARGE_BYTES", PART)
        patched.setattr(upload_parts, "CHUNKS_OF_A_PART", 1)
        yield


@pytest.fixture(scope="module")
def unbroken(small_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The study when nothing breaks."""
    return run(tmp_path_factory.mktemp("whole"))


def run(folder: Path) -> Run:
    """A study of two rounds: the model that all have, and every site's exchanges about contributions."""
    with in_memory(folder) as running:
        study = light_study(running.parties, "large", FEDAVG, rounds=2, dimension=DIMENSION)
        running.start()
        assert [record.state for record in run_to_end(running, study)] == [RoundEnd.RELEASED] * 2
        (model,) = {final_model(running, site, "large") for site in SITES}
        about = {"contribution", "contribution part", "held"}
        entries = {
            site: [one for one in read_ledger(running.state(site) / "ledger.jsonl") if one.purpose in about]
            for site in SITES
        }
        assert not list(folder.glob("*/**/uploads/*/*/*"))  # complete ones are gone
    return model.hex(), entries


def parts_of(entries: list[LedgerEntry]) -> list[LedgerEntry]:
    return [one for one in entries if one.purpose == "contribution part"]


def test_parts_make_the_same_study_and_a_broken_upload_goes_on(
    unbroken: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, entries = unbroken
    # the vector goes to one server in each round, the seed to the other in one request
    expected = -(-8 * DIMENSION // PART)
    for site in SITES:
        assert 2 * expected <= len(parts_of(entries[site])) <= 2 * (expected + 1)
        assert all(one.body_sent_bytes < PART + 8192 for one in parts_of(entries[site]))
    sent: Counter[str] = Counter()
    send = ServerClient._send

    def breaks(self: ServerClient, method: Any, path: str, body: Any, purpose: str, *rest: Any, **more: Any) -> bytes:
        name = party_of(self)
        if purpose == "contribution part":
            sent[name] += 1
            if sent[name] in (4, 9):
                raise Unavailable("the connection broke")
        return send(self, method, path, body, purpose, *rest, **more)

    monkeypatch.setattr(ServerClient, "_send", breaks)
    again, broken = run(tmp_path / "broken")
    assert again == whole
    for site in SITES:
        assert sent[site] == len(parts_of(entries[site])) + 2  # two tries never left
        assert len(parts_of(broken[site])) == len(parts_of(entries[site]))
        assert sum(one.body_sent_bytes for one in parts_of(broken[site])) == sum(
            one.body_sent_bytes for one in parts_of(entries[site])
        )


def test_a_disk_that_loses_what_it_was_given_alters_no_model(
    unbroken: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes that a server could not store are sent again, and no receipt is signed over a file with holes.

    In the same study another process sweeps parts away while they are put together.
    """
    whole, _ = unbroken
    sync, asked, lost = os.fdatasync, Counter[str](), list[str]()

    def loses(handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        asked[path] += 1
        if asked[path] == 3 and len(lost) < 2:
            lost.append(path)
            os.pwrite(handle, bytes(4096), 0)
            raise OSError(errno.ENOSPC, "no space")
        sync(handle)

    finish, swept = ShareInParts.finish, list[Path]()

    def taken_away(self: ShareInParts, require_digest: Callable[[bytes], None]) -> tuple[ContributionHeader, bytes]:
        header = finish(self, require_digest)
        if not swept:
            swept.append(self.content.parent)
            shutil.rmtree(swept[0])
        return header

    monkeypatch.setattr(os, "fdatasync", loses)
    monkeypatch.setattr(ShareInParts, "finish", taken_away)
    again, _ = run(tmp_path / "losing")
    assert (len(lost), len(swept)) == (2, 1)
    assert again == whole
    assert "[error" not in capsys.readouterr().out


def test_an_agent_that_stops_midway_goes_on_after_its_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send = ServerClient._send
    acknowledged: Counter[str] = Counter()
    away = True

    def stops(self: ServerClient, method: Any, path: str, body: Any, purpose: str, *rest: Any, **more: Any) -> bytes:
        if purpose == "contribution part" and party_of(self) == "c1" and away and acknowledged["c1"] >= 5:
            raise Unavailable("the machine goes down")
        answer = send(self, method, path, body, purpose, *rest, **more)
        acknowledged[party_of(self)] += purpose == "contribution part"
        return answer

    monkeypatch.setattr(ServerClient, "_send", stops)
    with in_memory(tmp_path) as running:
        study = light_study(running.parties, "large", FEDAVG, rounds=1, dimension=DIMENSION)
        running.start()
        running.hand_in(study)
        running.until("half an upload", lambda: acknowledged["c1"] == 5)
        running.stop_agents("c1")
        away = False
        running.start("c1")
        running.until("the end", finished(running, "large", *SITES))
        (record,) = rounds_of(running, "c1", "large")
        assert record.took_part == SITES
        entries = read_ledger(running.state("c1") / "ledger.jsonl")
    parts = [one for one in entries if one.purpose == "contribution part"]
    assert len(parts) == acknowledged["c1"]
    assert len(parts) <= -(-8 * DIMENSION // PART) + 1  # each once, over both lives
