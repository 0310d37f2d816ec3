"""A study's picture: what each caller is shown of it, made once for all who are shown the same."""

from __future__ import annotations

from protocol.messages.control import StudyView, news_of
from protocol.messages.paths import EVERY_SITE
from servers.notifications import Changes
from servers.store.reading.picture import StudyPicture
from servers.store.records import MailRecord

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


def test_each_is_shown_its_own_letters_and_those_to_all_by_topic_and_sender() -> None:
    picture = StudyPicture(VIEW, LETTERS, 3)
    assert picture.shown_to("site-a").view.mail == (
        "checkpoint-1/requester",
        "weights-2/requester",
        "welcome-1/requester",
    )
    assert picture.shown_to("requester").view.mail == ("decline-1/site-a", "decline-1/site-b")
    assert picture.shown_to("site-c").view.mail == ("checkpoint-1/requester",)


def test_nobody_is_shown_what_it_sent() -> None:
    picture = StudyPicture(VIEW, [letter("checkpoint-1", "requester", EVERY_SITE)], 3)
    assert picture.shown_to("requester").view.mail == ()


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


def test_a_letter_wakes_its_recipient_and_no_server() -> None:
    changes = Changes()
    waiting = {site: changes.next_for(STUDY, site) for site in ("site-a", "site-b")}
    servers, number = (changes.next(STUDY), changes.next_shown(STUDY)), changes.number(STUDY)
    changes.notify_letter(STUDY, "site-a")
    assert waiting["site-a"].is_set()
    assert not any(event.is_set() for event in (waiting["site-b"], *servers))
    assert changes.number(STUDY) == number + 1
    assert not changes.next_for(STUDY, "site-a").is_set()
    changes.notify_letter(STUDY, "nobody-waits")


def test_a_change_of_the_study_wakes_everybody() -> None:
    changes = Changes()
    waiting = [changes.next_for(STUDY, site) for site in ("site-a", "site-b")]
    changes.notify(STUDY)
    assert all(event.is_set() for event in waiting)
    assert not changes.next_for(STUDY, "site-a").is_set()
