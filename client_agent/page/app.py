"""A site's page: FastAPI on the loopback, pages from templates, words on studies from forms (docs/joining.md).

Access to a site's page: whoever holds the one-time token that the command printed, in one browser. The page listens on
the loopback, where every user of the machine and every web page in a browser can reach it. So a request needs the
session's cookie (SameSite=Strict), names this host and port (a name that is rebound to the loopback names another),
and, where it changes something, comes from this origin and carries the session's token in its form.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO, Final
from zipfile import ZIP_STORED, ZipFile

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from markupsafe import Markup

from client_agent.learning.scores import FIRST_SCORES, first_scores
from client_agent.net.ledger import by_purpose, read_ledger
from client_agent.page.charts import over_rounds
from client_agent.page.study_state import of_sites
from client_agent.settings import AgentSettings
from client_agent.site.events import METRICS, RoundRecord, SiteValue, after_each, last_metrics, read_metrics
from client_agent.site.identity import load_identity
from client_agent.site.journal import Kept, finished_model, kept_model
from client_agent.study.approval import (
    KnownStudy,
    SiteStanding,
    StudyStanding,
    Word,
    budget_of,
    keep_word,
    known_study,
    leave_study,
    note_exported,
    own_weight,
    pause_study,
    resume_study,
    standing,
    study_standing,
)
from client_agent.study.plain_words import in_plain_words
from client_agent.study.privacy_spending import own_examples
from host.doctor import Report
from host.files import is_full
from host.web_page import (
    FOREIGN,
    FORM_FIELD,
    HEADERS,
    LANGUAGES,
    Pages,
    Refused,
    chosen_language,
    form_fields,
    form_token,
    refused_change,
    same,
    static_file,
)
from protocol.errors import ConfigurationError, MoietyError, StorageFull, UnknownResource
from protocol.messages.control import Roster

LAST: Final = "last"
UNFINISHED: Final = "unfinished"
_PREFIX: Final = "for-a-browser-"
_SHOWN_ROUNDS: Final = 200


def models_at(known: KnownStudy) -> tuple[str, ...]:
    """Return the models of a study that this site holds."""
    state = known.journal.site_state()
    if state is None or not state.model_version:
        return ()
    kept = [which.value for which in Kept if kept_model(known.journal, which) is not None]
    return (LAST, *([UNFINISHED] if finished_model(known.journal) is not None else []), *kept)


def zipped_model(settings: AgentSettings, known: KnownStudy, which: str, *, is_requester: bool) -> BinaryIO:
    """An open file, at its begin, that has no name: it is gone once it is closed, however this process ends.

    What it is made from lies in the study's folder meanwhile, so that deleting the study deletes it too.
    Raises: UnknownResource, ConfigurationError, StorageFull
    """
    if which not in models_at(known):
        raise UnknownResource(f"study {known.study.name!r} has no such model here")
    from client_agent.model.export import digest_in, export
    from client_agent.model.site_model import held_model

    kept = None if which in (LAST, UNFINISHED) else Kept(which)
    held = held_model(settings, known.study.name, unfinished=which == UNFINISHED, which=kept)
    try:
        with tempfile.TemporaryDirectory(dir=known.journal.folder, prefix=_PREFIX) as made:
            folder = Path(made) / f"{known.study.name}-{which}"
            card = export(held, settings.data, folder, is_requester=is_requester)
            file = _zipped(folder, known.journal.folder)
    except OSError as error:
        if is_full(error):
            raise StorageFull("no space left for this model's files: free space on this machine's disk") from None
        raise
    note_exported(settings, held.study, folder.name, digest_in(card))
    return file


def remove_leftovers(settings: AgentSettings) -> None:
    """Remove models that a killed page left; called before one begins. Also zip files of earlier versions."""
    for folder in settings.state_dir.glob(f"studies/*/{_PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)
    for path in settings.state_dir.glob("tmp*.zip"):
        path.unlink(missing_ok=True)


def _zipped(folder: Path, within: Path) -> BinaryIO:
    with ExitStack() as failed:
        file = failed.enter_context(tempfile.TemporaryFile(dir=within))
        with ZipFile(file, "w", ZIP_STORED) as into:
            for path in sorted(folder.iterdir()):
                into.write(path, f"{folder.name}/{path.name}")
        file.seek(0)
        failed.pop_all()
        return file


def _chart(label: str, points: Iterable[tuple[str, int, float]]) -> Markup:
    return Markup(over_rounds(label, points))  # noqa: S704 - the chart escapes every text


def all_studies(settings: AgentSettings, site: SiteStanding) -> list[tuple[StudyStanding, str]]:
    """Each study with its last model's metrics here; those that wait for a person first, those that are over last."""
    studies = sorted(site.studies, key=lambda one: (one.over, not one.waits, one.study))
    last = [last_metrics(settings.state_dir / "studies" / one.study / METRICS) for one in studies]
    return [
        (one, "" if record is None else first_scores(record.test_scores))
        for one, record in zip(studies, last, strict=True)
    ]


def one_study(settings: AgentSettings, roster: Roster, name: str) -> dict[str, object]:
    """Everything that this site knows of a study, as its page shows it.

    Raises: ConfigurationError, also for a study that this site does not know
    """
    known = known_study(settings, roster, name)
    records = read_metrics(known.journal.folder / METRICS)
    contributes = settings.site != roster.requester
    opens = known.study.rule.needs.value if any(_opened(record) for record in records) else ""
    tested = [(record.round, score) for record in records for score in record.test_scores[:FIRST_SCORES]]
    return {
        "known": known,
        "digest": known.study.digest(),
        "standing": study_standing(settings, known),
        "statements": in_plain_words(known.study, roster, settings.policy, own_examples(settings.data)),
        "rounds": [_round(*pair) for pair in reversed(list(after_each(records[-_SHOWN_ROUNDS:])))],
        "metrics": _chart(
            "the model on this site's own test examples",
            ((score.name, number, score.value) for number, score in tested if score.value is not None),
        ),
        "weights": _chart("each site's weight", of_sites(records, lambda record: record.alphas)),
        "distances": _chart(opens, of_sites(records, _opened)),
        "models": models_at(known),
        "opens": opens,
        "may_say": known.waits and not known.over,
        "may_leave": contributes and not (known.waits or known.over) and known.left is None,
    }


def _round(before: RoundRecord | None, record: RoundRecord) -> dict[str, object]:
    weight = own_weight(record)
    return {
        "number": record.round,
        "state": record.state.value,
        "reason": record.reason_after(before),
        "purpose": record.purpose.value,
        "took_part": ", ".join(record.took_part),
        "missing": record.missing_after(before) or ", ".join((*record.failed_check, *record.declined)),
        "own_weight": "" if weight is None else f"{weight:.3f}",
        "opened": _listed(_opened(record)),
        "weights": _listed(record.alphas),
        "isolation": "" if record.isolation is None else f"{record.isolation:.3f}",
        "scores": first_scores(record.test_scores),
        "kilobytes": f"{(record.bytes_up + record.bytes_down) / 1000:.0f}",
    }


def _listed(values: tuple[SiteValue, ...]) -> str:
    return ", ".join(f"{one.site} {one.value:.3g}" for one in values)


def _opened(record: RoundRecord) -> tuple[SiteValue, ...]:
    """The numbers about single sites that the requester opened; contributors' records have none."""
    return record.distances or record.norms or record.inner_products


COOKIE: Final = "moiety-page"
LOOPBACK: Final = "127.0.0.1"


@dataclass
class Door:
    """One token, one session; a new start of the page makes new ones."""

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    _session: str | None = field(default=None, repr=False)

    @property
    def origin(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def enter(self, token: str) -> str | None:
        """The session's cookie for the token, once; None for another one, or a second time."""
        if self._session is not None or not same(token, self.token):
            return None
        self._session = secrets.token_urlsafe(32)
        return self._session

    def knows(self, cookie: str | None) -> bool:
        """Return whether this is the session's cookie."""
        return self._session is not None and same(cookie or "", self._session)

    def is_host(self, host: str | None) -> bool:
        return host == f"{LOOPBACK}:{self.port}"

    @property
    def form_token(self) -> str:
        """Return the token that the session's forms carry; another site's page cannot read it. Requires: a session"""
        return form_token(self._session or "")

    def is_form(self, token: str) -> bool:
        return self._session is not None and same(token, self.form_token)


_OPEN: Final = frozenset({"/login", "/static/page.css", "/static/page.js"})
_LANGUAGE: Final = "moiety-language"
_BLOCK_BYTES: Final = 2**18
_YEAR_S: Final = 365 * 86400
NOWHERE: Final = "There is no such page here."
LOGIN: Final = (
    "This address is good for one browser, once. Start the page again with 'moiety agent page' and open the address "
    "that it prints."
)
Handled = Callable[[Request], Awaitable[Response]]


def make_page(settings: AgentSettings, door: Door, look: Callable[[], Report]) -> FastAPI:
    """The application; ``door`` says who may come in, ``look`` how all that the site needs is.

    Raises: ConfigurationError, BadSignature
    """
    roster, came_with = load_identity(settings)
    page = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    shown = _Shown(settings, roster, came_with, door, look)

    @page.middleware("http")
    async def guard(request: Request, handle: Handled) -> Response:
        refused = _refused(request, door)
        answer = await handle(request) if refused is None else shown.problem(request, *refused)
        answer.headers.update(HEADERS)
        return answer

    @page.exception_handler(MoietyError)
    async def failed(request: Request, error: MoietyError) -> Response:
        missing = isinstance(error, UnknownResource)
        return shown.problem(request, HTTPStatus.NOT_FOUND if missing else HTTPStatus.CONFLICT, error.detail)

    @page.exception_handler(HTTPStatus.NOT_FOUND)
    async def missing(request: Request, _error: Exception) -> Response:
        return shown.problem(request, HTTPStatus.NOT_FOUND, NOWHERE)

    page.get("/login")(shown.login)
    page.get("/static/{name}")(shown.static)
    page.get("/language/{code}")(shown.speak)
    page.get("/")(shown.overview)
    page.get("/now")(shown.now)
    page.get("/budget")(shown.budget)
    page.get("/ledger")(shown.ledger)
    page.get("/check")(shown.check)
    page.get("/studies/{name}")(shown.study)
    page.get("/studies/{name}/rounds")(shown.rounds)
    page.get("/studies/{name}/models/{which}")(shown.model)
    page.post("/studies/{name}/{word}")(shown.say)
    return page


def _refused(request: Request, door: Door) -> Refused | None:
    if not door.is_host(request.headers.get("host")):
        return HTTPStatus.MISDIRECTED_REQUEST, f"This page is at {door.origin} alone."
    if request.url.path in _OPEN:
        return None if request.method == "GET" else (HTTPStatus.METHOD_NOT_ALLOWED, "Only GET.")
    if not door.knows(request.cookies.get(COOKIE)):
        return HTTPStatus.FORBIDDEN, LOGIN
    if request.method in ("GET", "HEAD"):
        return None
    return refused_change(request.headers.get("origin"), door.origin, request.headers.get("content-length"))


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while block := file.read(_BLOCK_BYTES):
            yield block


class _Shown:
    """The pages, each made from what the journal says now."""

    def __init__(
        self, settings: AgentSettings, roster: Roster, came_with: str, door: Door, look: Callable[[], Report]
    ) -> None:
        self._settings = settings
        self._roster = roster
        self._came_with = came_with
        self._door = door
        self._look = look
        self._asks = settings.site == roster.requester
        self._pages = Pages(
            "client_agent.page",
            root="",
            whose=settings.site,
            asks=self._asks,
            requester=roster.requester,
            languages=LANGUAGES,
        )

    def _page(self, request: Request, name: str, code: int = HTTPStatus.OK, **values: object) -> HTMLResponse:
        language = chosen_language(request.cookies.get(_LANGUAGE), request.headers.get("accept-language"))
        return HTMLResponse(self._pages.render(name, language, **values), code)

    def problem(self, request: Request, status: HTTPStatus, detail: str) -> Response:
        return self._page(request, "problem.html", status, detail=detail)

    async def login(self, request: Request, token: str = "") -> Response:
        cookie = self._door.enter(token)
        if cookie is None:
            return self.problem(request, HTTPStatus.FORBIDDEN, LOGIN)
        answer = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        answer.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", path="/")
        return answer

    async def static(self, request: Request, name: str) -> Response:
        found = static_file(name)
        if found is None:
            return self.problem(request, HTTPStatus.NOT_FOUND, NOWHERE)
        return Response(found[0], media_type=found[1])

    async def speak(self, request: Request, code: str) -> Response:
        """The reader's choice of a language, for this browser."""
        if code not in LANGUAGES:
            return self.problem(request, HTTPStatus.NOT_FOUND, NOWHERE)
        answer = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        answer.set_cookie(_LANGUAGE, code, max_age=_YEAR_S, httponly=True, samesite="strict", path="/")
        return answer

    def overview(self, request: Request) -> Response:
        return self._page(request, "overview.html", HTTPStatus.OK, policy=self._settings.policy, **self._present())

    def now(self, request: Request) -> Response:
        """The part of the first page that changes by itself."""
        return self._page(request, "now.html", HTTPStatus.OK, **self._present())

    def _present(self) -> dict[str, object]:
        site = standing(self._settings)
        return {"site": site, "studies": all_studies(self._settings, site)}

    def budget(self, request: Request) -> Response:
        return self._page(request, "budget.html", budget=budget_of(self._settings, self._came_with))

    def ledger(self, request: Request) -> Response:
        sent = by_purpose(read_ledger(self._settings.state_dir / "ledger.jsonl"))
        return self._page(request, "ledger.html", sent=sent)

    def check(self, request: Request) -> Response:
        """Takes some seconds: both servers are asked, as ``moiety doctor`` does."""
        return self._page(request, "check.html", report=self._look())

    def study(self, request: Request, name: str) -> Response:
        seen = one_study(self._settings, self._roster, name)
        return self._page(request, "study.html", seen=seen, token_name=FORM_FIELD, token=self._door.form_token)

    def rounds(self, request: Request, name: str) -> Response:
        """The part of a study's page that changes while rounds go on."""
        return self._page(request, "rounds.html", seen=one_study(self._settings, self._roster, name))

    def model(self, name: str, which: str) -> Response:
        """As a zip file, of which nothing stays once it is sent."""
        known = known_study(self._settings, self._roster, name)
        file = zipped_model(self._settings, known, which, is_requester=self._asks)
        headers = {
            "content-length": str(os.fstat(file.fileno()).st_size),
            "content-disposition": f'attachment; filename="{known.study.name}-{which}.zip"',
        }
        return StreamingResponse(_blocks(file), media_type="application/zip", headers=headers)

    async def say(self, name: str, word: str, request: Request) -> Response:
        form = form_fields(await request.body())
        if not self._door.is_form(form.get(FORM_FIELD, "")):
            return self.problem(request, HTTPStatus.FORBIDDEN, FOREIGN)
        person, reason = form.get("person", ""), form.get("reason", "")
        if word in ("approve", "decline"):
            given = Word(approved=word == "approve", person=person, reason=reason)
            keep_word(self._settings, name, given, form.get("digest", ""))
        elif word == "leave":
            leave_study(self._settings, name, person, reason)
        elif word == "pause":
            pause_study(self._settings, name, person, reason)
        elif word == "resume":
            resume_study(self._settings, name)
        else:
            return self.problem(request, HTTPStatus.NOT_FOUND, NOWHERE)
        return RedirectResponse(f"/studies/{name}", HTTPStatus.SEE_OTHER)


def serve_page(settings: AgentSettings, port: int, look: Callable[[], Report]) -> None:
    """Print the address with its one-time token, then serve. Raises: ConfigurationError"""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen()  # who opens the address at once waits for the page and is not turned away
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"option --port: {port} cannot be listened on ({error.strerror}): name another"
        ) from None
    remove_leftovers(settings)
    door = Door(listener.getsockname()[1])
    page = make_page(settings, door, look)
    sys.stdout.write(f"open, in one browser, once: {door.origin}/login?token={door.token}\n")
    sys.stdout.flush()
    config = uvicorn.Config(
        page, log_config=None, access_log=False, server_header=False, proxy_headers=False, timeout_keep_alive=5
    )
    uvicorn.Server(config).run(sockets=[listener])
