"""The operator's page at ``/page`` of the operator's own port: a login, then pages that show (docs/operating.md).

Nothing can be changed here: a study is ended by its requester, a server by its machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from host.web_page.guard import FOREIGN, FORM_FIELD, HEADERS, Refused, form_fields, form_token, refused_change
from host.web_page.texts import SOURCE
from protocol.errors import MoietyError, UnknownStudy
from servers.page.changes import changes_of
from servers.page.door import SESSION_S, Door, TooManyGuesses, own_origin
from servers.page.overview import StudyInFull, seen_study, study_in_full
from servers.page.status import refusals, status_of
from servers.readiness import Readiness
from servers.server import Server

ROOT: Final = "/page"
_OPEN: Final = frozenset({"/login", "/static/page.css", "/static/page.js"})
_NO_PAGE: Final = "The operator's page needs the extra 'page': pip install 'moiety[server,page]' (the image has it).\n"
_SHOWN_ROUNDS: Final = 100
_NOWHERE: Final = "There is no such page here."
_ADDRESS: Final = "Open this page by an address or as localhost: a name can be made to lead here by whoever owns it."
Handled = Callable[[Request], Awaitable[Response]]


def make_page(app: FastAPI, readiness: Readiness) -> FastAPI:
    """What is shown of the running application ``app``, for its operator's port to mount at ``ROOT``."""
    page = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    server: Server = app.state.server
    door = Door(server.settings.data_dir, time.monotonic)
    try:
        shown = _Shown(app, readiness, door)
    except ImportError:
        page.get("/{path:path}")(_not_installed)
        return page

    @page.middleware("http")
    async def guard(request: Request, handle: Handled) -> Response:
        try:
            refused = shown.refused(request)
        except MoietyError as error:
            refused = HTTPStatus.CONFLICT, error.detail
        if refused is None:
            answer = await handle(request)
        elif refused[0] is HTTPStatus.UNAUTHORIZED and request.method == "GET":
            answer = RedirectResponse(f"{ROOT}/login", HTTPStatus.SEE_OTHER)
        else:
            answer = shown.problem(*refused)
        answer.headers.update(HEADERS)
        return answer

    @page.exception_handler(MoietyError)
    async def failed(_: Request, error: MoietyError) -> Response:
        missing = isinstance(error, UnknownStudy)
        return shown.problem(HTTPStatus.NOT_FOUND if missing else HTTPStatus.CONFLICT, error.detail)

    @page.exception_handler(HTTPStatus.NOT_FOUND)
    async def missing(_: Request, _error: Exception) -> Response:
        return shown.problem(HTTPStatus.NOT_FOUND, _NOWHERE)

    _add_routes(page, shown)
    return page


def _add_routes(page: FastAPI, shown: _Shown) -> None:
    page.get("/login")(shown.login)
    page.post("/login")(shown.enter)
    page.post("/logout")(shown.leave)
    page.get("/static/{name}")(shown.static)
    page.get("/")(shown.first)
    page.get("/now")(shown.now)
    page.get("/studies/{name}")(shown.study)
    page.get("/studies/{name}/now")(shown.study_now)
    page.get("/roster")(shown.roster)
    page.get("/refused")(shown.refused_requests)


async def _not_installed() -> Response:
    return PlainTextResponse(_NO_PAGE, HTTPStatus.NOT_IMPLEMENTED, HEADERS)


class _Shown:
    """The pages, each made from what the server says now; on its event loop, as all of its store's calls."""

    def __init__(self, app: FastAPI, readiness: Readiness, door: Door) -> None:
        """Raises: ImportError, without the extra ``page``"""
        from host.web_page.pages import Pages

        self._app = app
        self._server: Server = app.state.server
        self._readiness = readiness
        self._door = door
        self._cookie = f"moiety-operator-{self._server.side.value}"
        self._pages = Pages("servers.page", root=ROOT, whose=self._server.name, form_name=FORM_FIELD)

    # --- who may ask ---

    def refused(self, request: Request) -> Refused | None:
        """Why a request is not answered; None where it may be."""
        origin = own_origin(request.headers.get("host"))
        if origin is None:
            return HTTPStatus.MISDIRECTED_REQUEST, _ADDRESS
        changes = request.method not in ("GET", "HEAD")
        if changes:
            headers = request.headers
            refused = refused_change(headers.get("origin"), origin, headers.get("content-length"))
            if refused is not None:
                return refused
        if request.url.path.removeprefix(ROOT) in _OPEN:
            return None
        if not self._door.knows(self._given(request)):
            return HTTPStatus.UNAUTHORIZED, "Log in first."
        return None

    def _given(self, request: Request) -> str | None:
        return request.cookies.get(self._cookie)

    async def login(self) -> Response:
        return self._page("login.html", wrong="", token="")

    async def enter(self, request: Request) -> Response:
        form = form_fields(await request.body())
        try:
            cookie = await asyncio.to_thread(self._door.enter, form.get("password", ""))
        except MoietyError as error:
            code = HTTPStatus.TOO_MANY_REQUESTS if isinstance(error, TooManyGuesses) else HTTPStatus.CONFLICT
            return self._page("login.html", code, wrong=error.detail, token="")
        if cookie is None:
            return self._page("login.html", HTTPStatus.FORBIDDEN, wrong="That is not the password.", token="")
        answer = RedirectResponse(f"{ROOT}/", HTTPStatus.SEE_OTHER)
        answer.set_cookie(self._cookie, cookie, max_age=int(SESSION_S), httponly=True, samesite="strict", path=ROOT)
        return answer

    async def leave(self, request: Request) -> Response:
        cookie, form = self._given(request), form_fields(await request.body())
        if not self._door.is_form(cookie, form.get(FORM_FIELD, "")):
            return self.problem(HTTPStatus.FORBIDDEN, FOREIGN)
        self._door.leave(cookie)
        return RedirectResponse(f"{ROOT}/login", HTTPStatus.SEE_OTHER)

    # --- pages ---

    def problem(self, status: HTTPStatus, detail: str) -> Response:
        return self._page("problem.html", status, detail=detail, token="")

    def _page(self, name: str, code: int = HTTPStatus.OK, **values: object) -> HTMLResponse:
        return HTMLResponse(self._pages.render(name, SOURCE, side=self._server.side.value, **values), code)

    def _for(self, request: Request, name: str, **values: object) -> HTMLResponse:
        return self._page(name, HTTPStatus.OK, token=form_token(self._given(request) or ""), **values)

    async def static(self, name: str) -> Response:
        from host.web_page.pages import static_file

        found = static_file(name)
        if found is None:
            return self.problem(HTTPStatus.NOT_FOUND, _NOWHERE)
        return Response(found[0], media_type=found[1])

    async def first(self, request: Request) -> Response:
        return self._for(request, "overview.html", **self._present())

    async def now(self, request: Request) -> Response:
        """The part of the first page that changes by itself."""
        return self._for(request, "now.html", **self._present())

    def _present(self) -> dict[str, object]:
        store = self._server.store
        records = store.studies()
        return {
            "status": status_of(self._app, self._readiness),
            "running": [self._in_full(one.name, rounds=1) for one in records if not one.state.ended],
            "ended": [seen_study(store, one) for one in records if one.state.ended],
        }

    def _in_full(self, name: str, *, rounds: int = _SHOWN_ROUNDS) -> StudyInFull:
        server = self._server
        record = server.store.study_named(name)
        if record is None:
            raise UnknownStudy(f"this server has no study {name!r}")
        sites = (server.roster.requester, *(party.name for party in server.roster.contributors))
        return study_in_full(server.store, record, sites, server.clock(), rounds)

    async def study(self, request: Request, name: str) -> Response:
        return self._for(request, "study.html", study=self._in_full(name))

    async def study_now(self, request: Request, name: str) -> Response:
        return self._for(request, "rounds.html", study=self._in_full(name))

    async def roster(self, request: Request) -> Response:
        chain = self._server.chain
        changes = changes_of(chain)
        return self._for(request, "roster.html", roster=chain.head, digest=chain.head_digest, changes=changes)

    async def refused_requests(self, request: Request) -> Response:
        counts, last = refusals(self._server)
        return self._for(request, "refused.html", counts=counts, last=last)
