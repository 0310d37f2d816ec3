"""A contributor's long poll: woken by what it acts on, and by no contribution of another's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from protocol.messages.control import RoundState, StudyView, news_of
from servers.notifications import Changes
from servers.server import Server, letter_came
from servers.settings import Limits
from servers.store.migrate import upgrade
from servers.store.records import ContributionRecord, MailRecord
from servers.store.sql import SqlStore
from servers.studies import view, watch_news
from tests.contract.records import KEY, PARTIES, RECORD, ROUND, contribution

SITE = "site-b"
LONG_S = 60.0


class Reading(SqlStore):
    """Counts how often a round is read for a picture."""

    pictures = 0

    def current_round(self, study: str) -> Any:
        self.pictures += 1
        return super().current_round(study)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    url, changes = f"sqlite:///{tmp_path / 'store.db'}", Changes()
    upgrade(url)
    store = Reading(url, changes.notify, lambda: 1.0, changes.notify_held, partial(letter_came, changes))
    store.add_study(RECORD)
    store.add_round(ROUND)
    chain, settings = SimpleNamespace(number=0), SimpleNamespace(limits=Limits())
    roster = PARTIES.roster.message
    made = SimpleNamespace(store=store, changes=changes, chain=chain, settings=settings, roster=roster, pictures={})
    yield cast("Server", made)
    store.close()


def shown(server: Server) -> StudyView:
    return view(server, server.store.study(RECORD.digest), SITE)


def waiting(server: Server, wait_s: float = LONG_S) -> Awaitable[StudyView | None]:
    return watch_news(server, RECORD, SITE, news_of(shown(server)), wait_s)


def after(server: Server, *changes: Callable[[], object]) -> StudyView | None:
    """What a poll that began before them is answered with; each is seen by whoever waits before the next one."""

    async def scenario() -> StudyView | None:
        poll = asyncio.ensure_future(waiting(server))
        for change in changes:
            await asyncio.sleep(0)
            assert not poll.done()
            change()
        return await asyncio.wait_for(poll, LONG_S)

    return asyncio.run(scenario())


def held(site: str) -> ContributionRecord:
    return contribution(site, f"share of {site}")


def test_nothing_new_is_said_without_a_view(server: Server) -> None:
    assert asyncio.run(cast("Any", waiting(server, 0.01))) is None


def test_other_news_are_answered_at_once(server: Server) -> None:
    assert asyncio.run(watch_news(server, RECORD, SITE, "0" * 64, LONG_S)) == shown(server)


def test_a_round_wakes_once_with_its_end(server: Server) -> None:
    def moves(state: RoundState) -> Callable[[], object]:
        return lambda: server.store.change_round(KEY, lambda r: replace(r, state=state))

    between = [moves(state) for state in (RoundState.LOCKED, RoundState.MEASURED, RoundState.COMMITTED)]
    came = lambda: server.store.add_contribution(held(SITE), RoundState.COLLECTING)  # noqa: E731
    found = after(server, came, *between, moves(RoundState.RELEASED))
    assert found is not None
    assert found.current is not None
    assert found.current.state is RoundState.RELEASED
    assert found == shown(server)


def test_only_a_letter_to_this_site_wakes_it(server: Server) -> None:
    def letter(to: str, topic: str = "welcome-0") -> Callable[[], None]:
        mail = MailRecord(RECORD.digest, "site-a", to, topic, "66" * 32, f"{to} {topic}")
        return lambda: server.store.add_mail(mail)

    found = after(server, letter("site-a"), letter(SITE, "weights-1"), letter(SITE))
    assert found is not None
    assert found.mail == ("weights-1/site-a", "welcome-0/site-a")


def test_a_letter_in_place_of_another_wakes_the_recipients_of_both_and_nobody_else(server: Server) -> None:
    old = MailRecord(RECORD.digest, "site-a", SITE, "welcome-0", "66" * 32, "old")
    server.store.add_mail(old)
    changes = server.changes
    waiting_for = {name: changes.next_for(RECORD.digest, name) for name in ("site-a", SITE, "site-c")}
    driver, before = changes.next_shown(RECORD.digest), changes.number(RECORD.digest)
    server.store.add_mail(replace(old, recipient="site-a", topic="welcome-1", file="new"), [old])
    assert [name for name, event in waiting_for.items() if event.is_set()] == ["site-a", SITE]
    assert not driver.is_set()
    assert changes.number(RECORD.digest) > before
    assert server.store.mail_for(RECORD.digest, (SITE,)) == []


def test_contributions_that_change_nothing_in_a_view_wake_nobody_who_waits_for_one(server: Server) -> None:
    server.store.add_contribution(held("site-a"), RoundState.COLLECTING)
    changes, before = server.changes, shown(server)
    all_of_them, of_views = changes.next(RECORD.digest), changes.next_shown(RECORD.digest)
    server.store.add_contribution(held(SITE), RoundState.COLLECTING)
    assert all_of_them.is_set()
    assert not of_views.is_set()
    assert shown(server) == before


def test_a_change_is_read_once_however_many_wait(server: Server) -> None:
    async def scenario() -> int:
        polls = [asyncio.ensure_future(waiting(server)) for _ in range(20)]
        await asyncio.sleep(0)
        store = cast("Reading", server.store)
        before = store.pictures
        store.change_study(RECORD.digest, lambda record: replace(record, absent_in_a_row=1))
        store.change_round(KEY, lambda r: replace(r, state=RoundState.SKIPPED))
        assert None not in await asyncio.gather(*polls)
        return store.pictures - before

    assert asyncio.run(scenario()) == 1
