"""Views of studies and rounds, and what wakes those who wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from client_agent.net.server_client import ServerClient
from protocol.errors import MalformedMessage
from protocol.messages.control import (
    MAX_CONTROL_BYTES,
    ChallengeTranscript,
    ListedStudy,
    Message,
    Party,
    Role,
    RoundState,
    Signature,
    Signed,
    StudyEnd,
    StudyEndState,
    StudyIndex,
    StudyState,
    StudyView,
    news_of,
)
from protocol.messages.letter import LetterKind, Topic
from protocol.messages.paths import EVERY_SITE
from protocol.messages.purpose import EndCause, OutcomeCause
from protocol.parameters import Needs
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from servers.event_loop import Changes
from servers.server import Server, letter_came
from servers.settings import Limits
from servers.store.cache import StudyPicture
from servers.store.records import A_NEW_STUDY, ContributionRecord, MailRecord, RoundRecord, StudyRecord
from servers.store.sql import SqlStore
from servers.studies import PAGE_BYTES, studies_after, view, watch_news
from tests.contract.records import KEY, PARTIES, RECORD, ROUND, contribution
from tests.kit.databases import new_database
from tests.kit.present import present
from tests.kit.round_messages import agreed_set, announcement, outcome, release_set, sum_release
from tests.unit.client_agent.enveloped import NOW, enveloped
from tests.unit.client_agent.federation import ROSTER, keys

# --- news -------------------------------------------------------------------------------------------------------------

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
    url, changes = new_database(tmp_path / "store.db"), Changes()
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
    """The answers to a poll that began before them; each is seen by whoever waits before the next one."""

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
    found = present(after(server, came, *between, moves(RoundState.RELEASED)))
    assert present(found.current).state is RoundState.RELEASED
    assert found == shown(server)


def test_only_a_letter_to_this_site_wakes_it(server: Server) -> None:
    def letter(to: str, topic: str = "welcome-0") -> Callable[[], None]:
        mail = MailRecord(RECORD.digest, "site-a", to, topic, "66" * 32, f"{to} {topic}")
        return lambda: server.store.add_mail(mail)

    found = present(after(server, letter("site-a"), letter(SITE, "weights-1"), letter(SITE)))
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


# --- picture ----------------------------------------------------------------------------------------------------------

STUDY = "00" * 32
VIEW = StudyView(study="study", study_digest=STUDY, cursor=7, ready=("site-a", "site-b"), mail=(), current=None)


def letter(topic: str, sender: str, recipient: str) -> MailRecord:
    return MailRecord(STUDY, sender, recipient, topic, "66" * 32, f"{topic} {sender} {recipient}")


LETTERS = [
    letter("checkpoint-1", "requester", EVERY_SITE),
    letter("welcome-1", "requester", "site-a"),
    letter("weights-2", "requester", "site-a"),
    letter("weights-2", "requester", "site-b"),
    letter("decline-1", "site-b", "requester"),
    letter("decline-1", "site-a", "requester"),
]


def test_each_is_shown_its_own_letters_and_those_to_all_but_none_that_it_sent_by_topic_and_sender() -> None:
    picture = StudyPicture(VIEW, LETTERS, 3)
    assert picture.shown_to("site-a").view.mail == (
        "checkpoint-1/requester",
        "weights-2/requester",
        "welcome-1/requester",
    )
    assert picture.shown_to("requester").view.mail == ("decline-1/site-a", "decline-1/site-b")
    assert picture.shown_to("site-c").view.mail == ("checkpoint-1/requester",)


def test_those_with_the_same_letters_see_the_same_view() -> None:
    picture = StudyPicture(VIEW, LETTERS, 3)
    assert picture.shown_to("site-c") is picture.shown_to("site-d")
    assert picture.shown_to("site-c") is not picture.shown_to("site-a")
    shown = picture.shown_to("site-c").view
    assert shown.canonical_kept() is picture.shown_to("site-d").view.canonical_kept()
    assert shown.canonical_kept() == shown.canonical()


def test_news_are_those_of_the_view() -> None:
    picture = StudyPicture(VIEW, LETTERS, 3)
    for caller in ("site-a", "site-b", "site-c", "requester"):
        shown = picture.shown_to(caller)
        assert shown.news == news_of(shown.view)


# --- largest view -----------------------------------------------------------------------------------------------------

DIGEST, LATE = "f" * 64, 10**6
SHORTEST = Party(name="s", role=Role.SITE, signing_key=DIGEST, sealing_key="f" * 2432, samples=1)
MOST_SITES = MAX_CONTROL_BYTES // len(SHORTEST.canonical())
NAMES = [f"{number:063d}" for number in range(MOST_SITES)]
REQUESTER, CONTRIBUTORS = NAMES[0], NAMES[1:]
KEPT = {kind: 3 if kind.of_a_round else 1 for kind in LetterKind}
"""Letters of a kind between two sites: of at most two rounds, one more for what is under way, else the newest."""


def signed(message: Any) -> Signed[Any]:
    """The message signed by as many as sign anything, with the longest names."""
    signatures = tuple(Signature(signer=name, value="f" * 128) for name in NAMES[:3])
    kind: Any = Signed[type(message)]  # type: ignore[misc]
    return kind(message=message, signatures=signatures)


def full_round() -> RoundRecord:
    """Everything that a round can show at once, and more: an end, a sum's release and the requester's set."""
    of: dict[str, Any] = {"study_digest": DIGEST, "round": LATE}
    most: dict[str, Any] = {"listed": tuple(CONTRIBUTORS), "least_contributors": len(CONTRIBUTORS)}
    most |= {"model_version": LATE, "closes_at_s": 2**53, "opens": Needs.NOTHING, "ckks_key_id": "f" * 32}
    told = announcement(**of, **most)
    agreed = agreed_set(told, tuple(NAMES), attempt=1000)
    release = release_set(agreed, agreed.sites, failed_check=agreed.sites)
    messages: dict[str, Message] = {
        "announcement": told,
        "agreed_set": agreed,
        "transcript": ChallengeTranscript(
            agreed_set_digest=DIGEST, commitment_a=DIGEST, nonce_a=DIGEST, nonce_b=DIGEST, challenge=DIGEST
        ),
        "release_set": release,
        "sum_release": sum_release(release, DIGEST),
        "outcome": outcome(
            DIGEST, round=LATE, attempt=1000, cause=OutcomeCause.ANNOUNCED_AT_ONE_SERVER, found=LATE, needed=LATE
        ),
    }
    made: dict[str, Any] = {name: signed(message) for name, message in messages.items()}
    return RoundRecord(RoundKey(DIGEST, LATE, 1000), RoundState.SKIPPED, closes_at_s=0.0, **made)


def letters() -> list[MailRecord]:
    """The most letters at a server at once; a checkpoint for each version that some site's welcome names."""
    found = []
    for kind, count in KEPT.items():
        for number in range(LATE - count + 1, LATE + 1):
            for place, site in enumerate(CONTRIBUTORS):
                sender, recipient = (REQUESTER, site) if kind.from_requester else (site, REQUESTER)
                if kind is LetterKind.CHECKPOINT:
                    topic, recipient = Topic(kind, LATE - place), EVERY_SITE
                else:
                    topic = Topic(kind, number)
                found.append(MailRecord(DIGEST, sender, recipient, str(topic), DIGEST, "file"))
    return found


@pytest.fixture(scope="module")
def largest_server() -> tuple[Any, StudyRecord]:
    end = StudyEnd(
        study_digest=DIGEST, state=StudyEndState.LOCAL_ONLY, cause=EndCause.POLICY, site=NAMES[1], reason="\x00" * 500
    )
    named: Any = SimpleNamespace(message=SimpleNamespace(name="n" * 63))
    record = StudyRecord(DIGEST, named, StudyState.LOCAL_ONLY, "", 10**9, end=signed(end))
    one, mail = full_round(), letters()
    store = SimpleNamespace(
        current_round=lambda digest: one,
        ready_sites=lambda digest: tuple(NAMES),
        mail_for=lambda digest, recipients: mail,
    )
    roster = SimpleNamespace(sites=[SimpleNamespace(name=name) for name in NAMES])
    parts = {"store": store, "roster": roster, "chain": SimpleNamespace(number=1000), "pictures": {}}
    return SimpleNamespace(**parts, changes=Changes()), record


def test_the_roster_bounds_how_many_sites_there_are() -> None:
    assert 1_000 < MOST_SITES < 2_000
    assert MOST_SITES * len(SHORTEST.canonical()) <= MAX_CONTROL_BYTES


@pytest.mark.parametrize("caller", [REQUESTER, CONTRIBUTORS[0]], ids=["requester", "contributor"])
def test_the_largest_view_is_far_below_a_control_message(caller: str, largest_server: tuple[Any, StudyRecord]) -> None:
    """At most half of one: a view needs no pages."""
    made = view(*largest_server, caller)
    size = len(made.canonical())
    assert len(made.mail) >= MOST_SITES
    assert MAX_CONTROL_BYTES // 8 < size < MAX_CONTROL_BYTES // 2
    assert type(made).parse(made.canonical()) == made


# --- study pages ------------------------------------------------------------------------------------------------------

COUNT = 700
DIGESTS = [(f"study-{number:05d}", f"{number:064x}") for number in range(COUNT)]
INDEX = StudyIndex(studies=tuple(ListedStudy(name=name, study_digest=digest) for name, digest in DIGESTS))


def a_server(digests: list[tuple[str, str]], **limits: float) -> Any:
    store = SimpleNamespace(study_digests=lambda: digests)
    chain, settings = SimpleNamespace(number=0), SimpleNamespace(limits=Limits(**limits))
    return SimpleNamespace(store=store, chain=chain, changes=Changes(), settings=settings)


def client_of(pages: Any) -> ServerClient:
    transport = httpx.MockTransport(enveloped(pages))
    return ServerClient(Side.A, ROSTER.operator_a, keys("c1"), transport, clock=lambda: float(NOW))


def answers_of(server: Any, sizes: list[int]) -> Any:
    def answer(request: httpx.Request) -> httpx.Response:
        asked = request.url.params
        found = studies_after(server, asked["after"], asked.get("known", ""), float(asked.get("wait_s", 0)))
        page = asyncio.run(found)
        sizes.append(len(page.canonical()))
        return httpx.Response(200, content=page.canonical())

    return answer


def test_pages_together_are_all_studies_each_fits_and_what_is_known_is_not_said_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pages of a few hundred studies here; those of a real server are longer in proportion."""
    page_bytes, sizes = 2**14, list[int]()
    assert len(INDEX.canonical()) > 2 * page_bytes
    monkeypatch.setattr("servers.studies.PAGE_BYTES", page_bytes)
    client = client_of(answers_of(a_server(DIGESTS), sizes))
    assert client.studies() == INDEX
    assert len(sizes) > 2
    assert max(sizes) / page_bytes < 1.1 < MAX_CONTROL_BYTES / PAGE_BYTES / 2
    sizes.clear()
    assert client.studies(INDEX) is INDEX
    assert len(sizes) == 1
    assert sizes[0] < 200
    client.close()


def test_no_study_is_an_empty_page_and_a_server_that_lost_its_studies_says_so() -> None:
    client = client_of(answers_of(a_server([]), []))
    assert client.studies() == StudyIndex(studies=())
    assert client.studies(INDEX) == StudyIndex(studies=())
    client.close()


def test_the_answer_waits_until_there_is_one_study_more() -> None:
    """Other changes do not wake it, and it waits no longer than the caller and the server allow."""
    digests = DIGESTS[:2]
    known = StudyIndex(studies=INDEX.studies[:2]).digest()

    async def wait() -> tuple[bool, StudyIndex]:
        server = a_server(digests, long_poll_s=30.0)
        asked = asyncio.create_task(studies_after(server, "", known, 20.0))
        await asyncio.sleep(0.01)
        server.changes.notify("a" * 64)  # a round goes on
        await asyncio.sleep(0.01)
        waited = not asked.done()
        digests.append(DIGESTS[2])
        server.changes.notify(A_NEW_STUDY)
        return waited, await asyncio.wait_for(asked, 5)

    waited, found = asyncio.run(wait())
    assert waited
    assert found == StudyIndex(studies=INDEX.studies[:3])
    now_known = found.digest()
    quick = a_server(digests, long_poll_s=0.05)
    unchanged = asyncio.run(asyncio.wait_for(studies_after(quick, "", now_known, 300.0), 5))
    assert unchanged == StudyIndex(studies=(), unchanged=True)


def test_a_server_that_promises_more_for_ever_is_named() -> None:
    client = client_of(lambda request: httpx.Response(200, content=StudyIndex(studies=(), more=True).canonical()))
    with pytest.raises(MalformedMessage, match="promises more studies and shows none"):
        client.studies()
    client.close()


def test_unchanged_is_no_answer_to_who_knows_nothing() -> None:
    page = StudyIndex(studies=(), unchanged=True)
    client = client_of(lambda request: httpx.Response(200, content=page.canonical()))
    assert client.studies() == StudyIndex(studies=())
    client.close()
