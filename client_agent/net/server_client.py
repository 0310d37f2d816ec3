"""One server's HTTP interface, as a site sees it: requests signed and in envelopes, safe ones retried, errors mapped.

Requests may be sent again after a transport error or a 502 to 504 or 507: servers answer identical redelivery with the
stored answer. Every attempt carries a fresh nonce and time. Nothing of an answer is read beyond what it can have; one
that is longer is an error at once, not something to try again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import httpx
import stamina

from client_agent.net.answers import NOTHING_BYTES, Answer, LongAnswer
from client_agent.net.envelopes import Body, Method
from client_agent.net.exchange import Way, WrongClock
from client_agent.net.quiet_hours import NO_QUIET_HOURS, QuietHours
from host.clock import SYSTEM, Clock
from protocol.errors import MalformedMessage, Unavailable, UnknownResource
from protocol.messages import paths
from protocol.messages.control import (
    MAX_CONTROL_BYTES,
    Announcement,
    ContributedRound,
    ContributedRounds,
    Go,
    HeldUpload,
    ListedStudy,
    Message,
    Party,
    ReadyNotice,
    Receipt,
    ReleaseSet,
    RosterChange,
    Signed,
    Study,
    StudyEnd,
    StudyIndex,
    StudyView,
    TagCheck,
    TagSeed,
    TagsFailed,
    TagShares,
    news_of,
)
from protocol.roster.keyfile import PartyKeys
from protocol.sharing import Side

M = TypeVar("M", bound=Message)
T = TypeVar("T")
LARGE_BYTES: Final = 2**23
"""Contributions above this are sent in parts."""


@dataclass(frozen=True)
class RetryPolicy:
    """The time for which a request is sent again before the caller hears of it."""

    attempts: int = 6
    total_s: float = 30.0
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0


_EMPTY: Final = Body.of(b"")


class ServerClient:
    """Calls one of the two servers for one site."""

    def __init__(
        self,
        side: Side,
        operator: Party,
        keys: PartyKeys,
        transport: httpx.BaseTransport,
        *,
        retry: RetryPolicy = RetryPolicy(),
        clock: Callable[[], float] = time.time,
        in_sessions: bool = False,
        waits: Clock = SYSTEM,
    ) -> None:
        """``in_sessions``: requests agree on keys once for many of them, where the server grants it. ``waits``: the
        clock on which its threads wait for each other.
        """
        self.side = side
        self.follow(operator)
        self._retry = retry
        self._clock = clock
        self._quiet = NO_QUIET_HOURS
        self._way = Way(keys, transport, clock, waits if in_sessions else None)

    def close(self) -> None:
        self._way.close()

    def keep_quiet(self, hours: QuietHours) -> None:
        """In these hours no large transfer begins: it raises QuietNow. Small ones and what is under way go on."""
        self._quiet = hours

    def follow(self, operator: Party) -> None:
        """The same operator, with the keys and the address of a newer roster. Raises: MalformedMessage"""
        if operator.url is None:
            raise MalformedMessage(f"operator {operator.name!r} has no url in the roster")
        self.operator = operator

    # --- studies ---

    def create_study(self, study: Signed[Study]) -> Signed[Study]:
        answer = self._send("POST", paths.STUDIES, Body.of(study.canonical()), "create study")
        return Signed[Study].parse(answer)

    def studies(self, known: StudyIndex | None = None, wait_s: float = 0.0) -> StudyIndex:
        """Names and digests of all studies, page by page; while they are the ``known`` ones the server waits, at most
        ``wait_s``, and those come back.

        Raises: MalformedMessage, when a page brings nothing new
        """
        found: list[ListedStudy] = []
        digest = known.digest() if known is not None else ""
        query, extra_s = f"after=&known={digest}&wait_s={wait_s:g}", wait_s
        while True:
            answer = self._send("GET", f"{paths.STUDIES}?{query}", _EMPTY, "list studies", extra_s=extra_s)
            page = StudyIndex.parse(answer)
            if page.unchanged and known is not None and not found:
                return known
            names = [listed.name for listed in page.studies]
            if page.more and (not names or names[-1] <= (found[-1].name if found else "")):
                raise MalformedMessage(f"server {self.operator.name!r} promises more studies and shows none: tell it")
            found += page.studies
            if not page.more:
                return StudyIndex(studies=tuple(found), roster_changes=page.roster_changes)
            query, extra_s = f"after={names[-1]}", 0.0

    def study(self, name: str) -> Signed[Study]:
        return Signed[Study].parse(self._send("GET", paths.fill(paths.STUDY, study=name), _EMPTY, "read study"))

    def ready(self, name: str, notice: ReadyNotice) -> None:
        self._send("POST", paths.fill(paths.READY, study=name), Body.of(notice.canonical()), "ready", NOTHING_BYTES)

    def end(self, name: str, end: Signed[StudyEnd]) -> None:
        self._send("POST", paths.fill(paths.END, study=name), Body.of(end.canonical()), "end study", NOTHING_BYTES)

    def view(self, name: str, after: int | None = None, wait_s: float = 0.0) -> StudyView:
        """The server's view of a study; with ``after`` it waits up to ``wait_s`` for a newer one."""
        path = paths.fill(paths.VIEW, study=name)
        if after is not None:
            path += f"?after={after}&wait_s={wait_s:g}"
        return StudyView.parse(self._send("GET", path, _EMPTY, "view", extra_s=wait_s))

    def news(self, name: str, known: StudyView, wait_s: float) -> StudyView | None:
        """The view once a contributor has something else to act on than in ``known``; None if not in ``wait_s``."""
        path = f"{paths.fill(paths.VIEW, study=name)}?after={known.cursor}&wait_s={wait_s:g}&news={news_of(known)}"
        answer = self._send("GET", path, _EMPTY, "view", extra_s=wait_s)
        return StudyView.parse(answer) if answer else None

    def roster_change(self, number: int) -> Signed[RosterChange]:
        """One link of the roster's chain, unchecked. Raises: UnknownResource, where the server has fewer"""
        path = paths.fill(paths.ROSTER_CHANGE, number=number)
        return Signed[RosterChange].parse(self._send("GET", path, _EMPTY, "roster change"))

    # --- mail between sites ---

    def put_mail(self, name: str, topic: str, recipient: str, body: Body) -> None:
        path = paths.fill(paths.MAIL, study=name, topic=topic, recipient=recipient)
        self._send("PUT", path, body, f"mail {topic}", NOTHING_BYTES)

    def get_mail(self, name: str, topic: str, recipient: str, sender: str, most_bytes: int) -> bytes:
        """Sealed bytes from another site. Raises: TooLarge"""
        path = self._mail_path(name, topic, recipient, sender)
        return self._send("GET", path, _EMPTY, f"mail {topic}", most_bytes)

    def fetch_mail(self, name: str, topic: str, recipient: str, sender: str, into: Path, most_bytes: int) -> None:
        """As ``get_mail``, streamed to a file. Raises: QuietNow"""
        self._require_open(f"a checkpoint of study {name!r}", most_bytes)
        path, temporary = self._mail_path(name, topic, recipient, sender), into.with_name(into.name + ".part")

        def stored(answer: Answer) -> None:
            with temporary.open("wb") as file:
                file.writelines(answer.pieces(most_bytes))

        try:
            self._taken("GET", path, _EMPTY, f"mail {topic}", most_bytes, stored)
            temporary.replace(into)
        finally:
            temporary.unlink(missing_ok=True)

    @staticmethod
    def _mail_path(name: str, topic: str, recipient: str, sender: str) -> str:
        return paths.fill(paths.MAIL, study=name, topic=topic, recipient=recipient) + f"?sender={sender}"

    # --- a round ---

    def announce(self, name: str, announcement: Signed[Announcement]) -> Signed[Announcement]:
        path = paths.fill(paths.ANNOUNCEMENT, study=name, round=announcement.message.round)
        return Signed[Announcement].parse(self._send("POST", path, Body.of(announcement.canonical()), "announce"))

    def contribute(self, name: str, round_number: int, attempt: int, body: Body) -> Signed[Receipt]:
        """All of it in one request; a large one in parts, from the first one on that the server does not have yet.

        Raises: what the server refused with; Unavailable, and then the next call goes on where this one was
        """
        path = paths.fill(paths.CONTRIBUTION, study=name, round=round_number, attempt=attempt)
        self._require_open(f"the contribution to round {round_number} of study {name!r}", body.length)
        if body.length > LARGE_BYTES:
            with suppress(UnknownResource):  # a server of before takes it in one request only
                return self._in_parts(path, body)
        return Signed[Receipt].parse(self._send("PUT", path, body, "contribution"))

    def _in_parts(self, path: str, body: Body) -> Signed[Receipt]:
        asked = f"?digest={body.digest.hex()}&length={body.length}"
        held = HeldUpload.parse(self._send("GET", path + paths.HELD + asked, _EMPTY, "held"))
        missed = False
        while held.held_bytes < body.length:
            part = body.part(held.held_bytes, held.part_bytes)
            self._require_open("the rest of a contribution", body.length - held.held_bytes)
            target = f"{path}{paths.PART}{asked}&offset={held.held_bytes}"
            after = HeldUpload.parse(self._send("PUT", target, part, "contribution part"))
            if after.held_bytes > held.held_bytes:
                held, missed = after, False
            elif missed:
                raise Unavailable(f"server {self.operator.name!r} lost parts of the contribution; they are sent again")
            else:
                missed = True  # a proxy that takes turns chose another process; once more, and it chooses the first
        return Signed[Receipt].parse(self._send("POST", path + paths.WHOLE + asked, _EMPTY, "contribution"))

    def send_queries(self, name: str, round_number: int, attempt: int, body: Body) -> None:
        path = paths.fill(paths.QUERIES, study=name, round=round_number, attempt=attempt)
        self._send("POST", path, body, "queries", NOTHING_BYTES)

    def opening(self, name: str, round_number: int, attempt: int, most_bytes: int) -> bytes:
        path = paths.fill(paths.OPENING, study=name, round=round_number, attempt=attempt)
        return self._send("GET", path, _EMPTY, "opening", most_bytes)

    def release(self, name: str, release: Signed[ReleaseSet]) -> None:
        message = release.message
        path = paths.fill(paths.RELEASE_SET, study=name, round=message.round, attempt=message.attempt)
        self._send("PUT", path, Body.of(release.canonical()), "release set", NOTHING_BYTES)

    def tag_seed(self, name: str, seed: TagSeed) -> Signed[TagCheck]:
        """Show the seed of the tags; the server says by how much those of its half are off."""
        path = paths.fill(paths.TAG_SEED, study=name, round=seed.round, attempt=seed.attempt)
        return Signed[TagCheck].parse(self._send("PUT", path, Body.of(seed.canonical()), "tag seed"))

    def go(self, name: str, go: Signed[Go]) -> None:
        path = paths.fill(paths.GO, study=name, round=go.message.round, attempt=go.message.attempt)
        self._send("PUT", path, Body.of(go.canonical()), "go", NOTHING_BYTES)

    def tags_failed(self, name: str, failed: Signed[TagsFailed]) -> Signed[TagShares]:
        """Say that tags are wrong; the server shows its share of every site's error."""
        path = paths.fill(paths.TAGS_FAILED, study=name, round=failed.message.round, attempt=failed.message.attempt)
        return Signed[TagShares].parse(self._send("POST", path, Body.of(failed.canonical()), "tags failed"))

    def fetch_output(self, name: str, round_number: int, take: Callable[[Iterator[bytes]], T], most_bytes: int) -> T:
        """This side's half of a released sum, sealed to this site: what ``take`` makes of its pieces.

        Where the connection breaks, all pieces come again and ``take`` begins anew.
        """
        path = paths.fill(paths.OUTPUT, study=name, round=round_number)
        self._require_open(f"the sum of round {round_number} of study {name!r}", most_bytes)
        return self._taken("GET", path, _EMPTY, "output", most_bytes, lambda answer: take(answer.pieces(most_bytes)))

    def contributed(self, nonce: str, after: ContributedRound | None) -> Signed[ContributedRounds]:
        """One page of the rounds of updates that this server has the site's receipts for."""
        path = f"{paths.CONTRIBUTIONS}?nonce={nonce}"
        if after is not None:
            path += f"&after_study={after.study_digest}&after_round={after.round}"
        return Signed[ContributedRounds].parse(self._send("GET", path, _EMPTY, "receipts"))

    # --- requests ---

    def _require_open(self, what: str, length: int) -> None:
        self._quiet.require_open(self._clock(), f"{what} ({length / 1e6:.1f} MB)", length)

    def _send(
        self,
        method: Method,
        path: str,
        body: Body,
        purpose: str,
        most_bytes: int = MAX_CONTROL_BYTES,
        extra_s: float = 0.0,
    ) -> bytes:
        return self._taken(method, path, body, purpose, most_bytes, lambda answer: answer.whole(most_bytes), extra_s)

    def _taken(
        self,
        method: Method,
        path: str,
        body: Body,
        purpose: str,
        most_bytes: int,
        take: Callable[[Answer], T],
        extra_s: float = 0.0,
    ) -> T:
        """Return what ``take`` makes of the answer; it begins anew with every try."""

        def once() -> T:
            with self._way.exchange(self.operator, method, path, body, purpose, most_bytes, extra_s) as answer:
                return take(answer)

        tries = stamina.RetryingCaller(
            attempts=self._retry.attempts,
            timeout=self._retry.total_s,
            wait_initial=self._retry.first_wait_s,
            wait_max=self._retry.longest_wait_s,
        )
        return tries(self._worth_a_retry, once)

    def _worth_a_retry(self, error: Exception) -> bool | float:
        """The seconds that a Retry-After asks for; else whether to try again after the usual, growing wait."""
        unhelpful = (LongAnswer, WrongClock)  # the next one would be the same
        if not isinstance(error, Unavailable) or isinstance(error, unhelpful) or self._way.is_closed:
            return False
        return True if error.asked_pause_s is None else error.asked_pause_s
