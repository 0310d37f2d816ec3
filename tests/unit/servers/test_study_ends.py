"""With a study's end its last round's shares, query and unserved sum go, also where something comes between the two."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from protocol.errors import Unavailable, WrongRound
from protocol.messages.control import EndCause, PrivacySpec, RoundState, Signed, Study, StudyEnd, StudyEndState, sign
from protocol.sharing import Side
from servers import studies
from servers.retention import keeping
from servers.retention.unfinished import Unfinished
from servers.server import Server, open_server
from servers.settings import load_settings
from servers.store.records import Answer, AnswerKind
from tests.contract.records import KEY, RECORD, ROUND, contribution
from tests.kit.processes import prepare_servers

SITES = ("hospital-0", "hospital-1", "hospital-2", "hospital-3")
FILES = ("share-1", "query-1", "output-1")
SECOND_STEPS = (
    "servers.store.sql.SqlStore.forget_share_files",
    "servers.store.sql.SqlStore.change_round",
    "servers.store.files.upload_parts.UploadParts.keep_only",
)


@dataclass(frozen=True)
class Ending:
    """A server whose study is in a round with a sum that nobody was served, and what its requester says."""

    server: Server
    said: Signed[StudyEnd]

    def end(self) -> Signed[StudyEnd]:
        return studies.end(self.server, self.server.store.study(RECORD.digest), self.said)

    def broken_off(self, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(place, _away)
            with pytest.raises(Unavailable):
                self.end()
        assert self.server.store.study(RECORD.digest).end == self.said
        assert "output-1" in self.named()

    def named(self) -> set[str]:
        return self.server.store.files()

    def require_nothing_left(self) -> None:
        assert self.named() == set()
        assert [one.name for one in (self.server.settings.data_dir / "shares").iterdir()] == []
        assert self.server.store.answer(KEY, AnswerKind.OPENING) is None


def _away(*_: object, **__: object) -> None:
    raise Unavailable("the database does not answer")


@pytest.fixture
def ending(tmp_path: Path) -> Iterator[Ending]:
    federation = prepare_servers(tmp_path, SITES)
    server = open_server(load_settings(federation.servers[Side.A].config))
    store = server.store
    store.add_study(RECORD)
    store.add_round(replace(ROUND, query_file="query-1"))
    store.add_contribution(contribution("site-b"), RoundState.COLLECTING)
    committed = replace(ROUND, state=RoundState.COMMITTED, query_file="query-1", output_file="output-1")
    store.change_round(KEY, lambda _: committed, answers=[Answer(AnswerKind.OPENING, "", b"sealed")])
    for name in FILES:
        server.files.path(name).write_bytes(b"half of a sum")
    reason = StudyEnd(
        study_digest=RECORD.digest, state=StudyEndState.CANCELLED, cause=EndCause.CANCELLED, reason="not needed"
    )
    requester = federation.keys(server.roster.requester)
    yield Ending(server, sign(reason, requester.name, requester.signing))
    store.close()
    server.ckks.close()


@pytest.mark.parametrize("place", SECOND_STEPS)
def test_the_end_that_is_said_again_takes_what_is_left(
    ending: Ending, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    ending.broken_off(monkeypatch, place)
    assert ending.end() == ending.said
    ending.require_nothing_left()
    assert ending.end() == ending.said


@pytest.mark.parametrize("place", SECOND_STEPS)
def test_nobody_need_say_it_again(ending: Ending, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """At the start of a server and every hour; where that fails too, the next look tries again."""
    ending.broken_off(monkeypatch, place)
    unfinished = Unfinished(ending.server)
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(place, _away)
        asyncio.run(unfinished.forget())
    assert [line["event"] for line in logs] == ["end_not_finished"]
    assert "output-1" in ending.named()
    asyncio.run(unfinished.forget())
    ending.require_nothing_left()


def test_a_server_that_starts_looks_first_of_all(ending: Ending, monkeypatch: pytest.MonkeyPatch) -> None:
    ending.broken_off(monkeypatch, SECOND_STEPS[0])

    async def looks() -> None:
        keeps = asyncio.create_task(keeping.keep_to_retention(ending.server))
        while ending.named():
            await asyncio.sleep(0.01)
        keeps.cancel()

    asyncio.run(asyncio.wait_for(looks(), 20.0))
    ending.require_nothing_left()


def test_a_study_that_goes_on_keeps_everything(ending: Ending) -> None:
    asyncio.run(Unfinished(ending.server).forget())
    assert ending.named() == set(FILES)


def test_a_study_that_an_older_version_began_does_not_go_on_and_can_be_ended(ending: Ending) -> None:
    """Its sums would have had noise of the servers: this version would open them without."""
    server, now = ending.server, ending.server.store.study(RECORD.digest)
    assert now.goes_on
    old = now.study.model_copy(update={"privacy": PrivacySpec(unit="site", noise_multiplier=2.0)})
    begun = replace(now, signed=Signed[Study](message=old))
    server.store.change_study(RECORD.digest, lambda _: begun)
    assert not server.store.study(RECORD.digest).goes_on
    with pytest.raises(WrongRound, match=r"moiety study cancel.*privacy.unit 'site'.*take unit = 'record'"):
        studies.going_study(server, old.name)
    ending.end()
    assert studies.going_study(server, old.name).state.ended
