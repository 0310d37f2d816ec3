"""A site's page: FastAPI on the loopback, pages from templates, words on studies from forms (docs/joining.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from client_agent.page.door import COOKIE, Door
from client_agent.page.seen import all_studies, one_study, what_left
from client_agent.settings import AgentSettings
from client_agent.site.identity import load_identity
from client_agent.study.asked.at_hand import Word, keep_word, known_study
from host.web_page.guard import FOREIGN, FORM_FIELD, HEADERS, Refused, form_fields, refused_change
from host.web_page.pages import Pages, static_file
from protocol.errors import MoietyError
from protocol.wire.messages import Roster

_OPEN: Final = frozenset({"/login", "/static/page.css", "/static/page.js"})
Handled = Callable[[Request], Awaitable[Response]]


def make_page(settings: AgentSettings, door: Door) -> FastAPI:
    """The application; ``door`` says who may come in. Raises: ConfigurationError, BadSignature"""
    roster, _ = load_identity(settings)
    page = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    shown = _Shown(settings, roster, door)

    @page.middleware("http")
    async def guard(request: Request, handle: Handled) -> Response:
        refused = _refused(request, door)
        answer = await handle(request) if refused is None else shown.problem(*refused)
        answer.headers.update(HEADERS)
        return answer

    @page.exception_handler(MoietyError)
    async def failed(_: Request, error: MoietyError) -> Response:
        return shown.problem(HTTPStatus.CONFLICT, error.detail)

    @page.exception_handler(HTTPStatus.NOT_FOUND)
    async def missing(_: Request, _error: Exception) -> Response:
        return shown.problem(HTTPStatus.NOT_FOUND, "There is no such page here.")

    @page.get("/login")
    async def login(token: str = "") -> Response:
        cookie = door.enter(token)
        if cookie is None:
            return shown.problem(HTTPStatus.FORBIDDEN, _LOGIN)
        answer = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        answer.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", path="/")
        return answer

    page.get("/static/{name}")(shown.static)
    page.get("/")(shown.overview)
    page.get("/ledger")(shown.ledger)
    page.get("/studies/{name}")(shown.study)
    page.get("/studies/{name}/rounds")(shown.rounds)
    page.post("/studies/{name}/{word}")(shown.say)
    return page


_LOGIN: Final = (
    "This address is good for one browser, once. Start the page again with 'moiety agent page' and open the address "
    "that it prints."
)


def _refused(request: Request, door: Door) -> Refused | None:
    """Why a request is not answered; None where it may be."""
    if not door.is_host(request.headers.get("host")):
        return HTTPStatus.MISDIRECTED_REQUEST, f"This page is at {door.origin} alone."
    if request.url.path in _OPEN:
        return None if request.method == "GET" else (HTTPStatus.METHOD_NOT_ALLOWED, "Only GET.")
    if not door.knows(request.cookies.get(COOKIE)):
        return HTTPStatus.FORBIDDEN, _LOGIN
    if request.method in ("GET", "HEAD"):
        return None
    return refused_change(request.headers.get("origin"), door.origin, request.headers.get("content-length"))


class _Shown:
    """The pages, each made from what the journal says now."""

    def __init__(self, settings: AgentSettings, roster: Roster, door: Door) -> None:
        self._settings = settings
        self._roster = roster
        self._door = door
        self._pages = Pages(
            "client_agent.page", root="", whose=settings.site, site=settings.site, requester=roster.requester
        )

    def _page(self, name: str, status: int = HTTPStatus.OK, **values: object) -> HTMLResponse:
        return HTMLResponse(self._pages.render(name, **values), status)

    def problem(self, status: HTTPStatus, detail: str) -> Response:
        return self._page("problem.html", status, detail=detail)

    async def static(self, name: str) -> Response:
        found = static_file(name)
        if found is None:
            return self.problem(HTTPStatus.NOT_FOUND, "There is no such page here.")
        return Response(found[0], media_type=found[1])

    def overview(self) -> Response:
        studies = all_studies(self._settings, self._roster)
        return self._page("overview.html", studies=studies, policy=self._settings.policy, roster=self._roster)

    def ledger(self) -> Response:
        return self._page("ledger.html", sent=what_left(self._settings))

    def study(self, name: str) -> Response:
        seen = one_study(self._settings, self._roster, name)
        return self._page("study.html", seen=seen, token_name=FORM_FIELD, token=self._door.form_token)

    def rounds(self, name: str) -> Response:
        """The part of a study's page that changes while rounds go on."""
        return self._page("rounds.html", seen=one_study(self._settings, self._roster, name))

    async def say(self, name: str, word: str, request: Request) -> Response:
        form = form_fields(await request.body())
        if not self._door.is_form(form.get(FORM_FIELD, "")):
            return self.problem(HTTPStatus.FORBIDDEN, FOREIGN)
        person, reason = form.get("person", ""), form.get("reason", "")
        if word == "leave":
            known_study(self._settings, self._roster, name).journal.leave(f"{person}: {reason}"[:1000])
        elif word in ("approve", "decline"):
            given = Word(approved=word == "approve", person=person, reason=reason)
            keep_word(self._settings, name, given, form.get("digest", ""))
        else:
            return self.problem(HTTPStatus.NOT_FOUND, "There is no such page here.")
        return RedirectResponse(f"/studies/{name}", HTTPStatus.SEE_OTHER)
