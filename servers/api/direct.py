"""Enclosed requests of the usual form, handed to a route's function without FastAPI between.

What FastAPI does for a request of ours is little and always the same: find the route, read its path and query, call the
dependencies in order, then the function. Here that is worked out once for every route, from the same declarations; in a
request it costs a tenth. Whatever is not of the usual form (an address without a route, a value that is refused, a
parameter twice or unknown, a dependency that is not a coroutine) is not taken, and FastAPI answers it as ever.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from fastapi import APIRouter, FastAPI, Request, Response, params
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from protocol.errors import MoietyError
from servers.api.envelope import Envelope, is_sealed
from servers.server import Server

_USUAL: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
"""A value that is the same whether or not it is decoded."""
_ABSENT: Final = object()
_REFUSED: Final = object()
_PARAMETER: Final = re.compile(r"\{(\w+)\}")
Given = dict[str, Any]
"""The values of a request's path and query."""


@dataclass(frozen=True)
class _Value:
    """A parameter that stands in the path or the query."""

    name: str
    adapter: TypeAdapter[Any]
    default: Any

    def read(self, text: object) -> object:
        """As FastAPI validates it; what it would refuse is not read here."""
        if text is _ABSENT:
            return self.default
        try:
            return self.adapter.validate_python(text)
        except ValidationError:
            return _REFUSED


@dataclass(frozen=True)
class _Call:
    """A function, and what its arguments are: a value, the request, or what another function gives."""

    function: Callable[..., Awaitable[Any]]
    arguments: tuple[tuple[str, _Value | _Call | None], ...]

    @property
    def values(self) -> list[_Value]:
        """Its own and those of whatever it depends on."""
        found: list[_Value] = []
        for _, of in self.arguments:
            if isinstance(of, _Value):
                found.append(of)
            elif of is not None:
                found += of.values
        return found

    async def __call__(self, request: Request, given: Given, known: dict[Any, Any]) -> Any:  # noqa: ANN401
        """Return what the route returns. Dependencies first, in their order, each once per request."""
        arguments: Given = {}
        for name, of in self.arguments:
            if isinstance(of, _Call):
                if of.function not in known:
                    known[of.function] = await of(request, given, known)
                arguments[name] = known[of.function]
        for name, of in self.arguments:
            if isinstance(of, _Value):
                arguments[name] = given[of.name]
            elif of is None:
                arguments[name] = request
        return await self.function(**arguments)


@dataclass(frozen=True)
class _Way:
    """A route with all that it takes, worked out."""

    route: APIRoute
    parts: tuple[str | None, ...]
    """Parts of the path; None, where a value stands."""
    in_path: tuple[_Value, ...]
    in_query: Mapping[str, _Value]
    call: _Call

    def given(self, parts: Sequence[str], query: str) -> Given | None:
        """The values of a request; None, where they are not of the usual form."""
        said = _said(query)
        if said is None or not said.keys() <= self.in_query.keys():
            return None
        texts = [part for part, constant in zip(parts, self.parts, strict=True) if constant is None]
        found: Given = {}
        for value, text in zip(self.in_path, texts, strict=True):
            found[value.name] = value.read(text) if _USUAL.fullmatch(text) else _REFUSED
        for name, value in self.in_query.items():
            found[name] = value.read(said.get(name, _ABSENT))
        return None if _REFUSED in found.values() else found


@dataclass(frozen=True)
class Found:
    """A request's route, and its answer."""

    route: APIRoute
    _call: _Call
    _given: Given

    async def answer(self, request: Request) -> Response:
        """Raises: what the route's function and its dependencies raise"""
        answer: Response = await self._call(request, self._given, {})
        return answer


class Direct:
    """The ways to all routes that can be gone directly."""

    def __init__(self, routers: Sequence[APIRouter]) -> None:
        self._ways: dict[tuple[str, int], list[_Way]] = {}
        for router in routers:
            for route in router.routes:
                way = _way(route) if isinstance(route, APIRoute) else None
                if way is not None:
                    for method in way.route.methods or ():
                        self._ways.setdefault((method, len(way.parts)), []).append(way)

    def find(self, method: str, path: str, query: str) -> Found | None:
        """The first route that the path fits, as FastAPI goes through them; None, where that is to answer."""
        parts = path.split("/")
        for way in self._ways.get((method, len(parts)), ()):
            if all(constant is None or constant == part for constant, part in zip(way.parts, parts, strict=True)):
                given = way.given(parts, query)
                return None if given is None else Found(way.route, way.call, given)
        return None


def _said(query: str) -> dict[str, str] | None:
    """A query's values by name; None, where one comes twice or is not of the usual form."""
    said: dict[str, str] = {}
    for pair in query.split("&") if query else ():
        name, separator, text = pair.partition("=")
        if not separator or name in said or not (text == "" or _USUAL.fullmatch(text)):
            return None
        said[name] = text
    return said


def _way(route: APIRoute) -> _Way | None:
    """None for a route that takes what is not foreseen here, or on which more depends than its function says."""
    names = _PARAMETER.findall(route.path)
    parts = tuple(None if _PARAMETER.fullmatch(part) else part for part in route.path.split("/"))
    answers = get_type_hints(route.endpoint).get("return")
    call = _call(route.endpoint, frozenset(names)) if answers is Response else None
    if (
        route.dependencies
        or call is None
        or parts.count(None) != len(names)
        or any(part and "{" in part for part in parts)
    ):
        return None
    values = {value.name: value for value in call.values}
    if not set(names) <= values.keys():
        return None
    in_query = {name: value for name, value in values.items() if name not in names}
    return _Way(route, parts, tuple(values[name] for name in names), in_query, call)


def _call(function: Callable[..., Any], in_path: frozenset[str]) -> _Call | None:
    if not inspect.iscoroutinefunction(function):
        return None
    hints = get_type_hints(function, include_extras=True)
    arguments: list[tuple[str, _Value | _Call | None]] = []
    for name, parameter in inspect.signature(function).parameters.items():
        kind = hints[name]
        said = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
        depends = next((one for one in said if isinstance(one, params.Depends)), None)
        of: _Value | _Call | None = None
        if depends is not None:
            of = None if depends.dependency is None else _call(depends.dependency, in_path)
        elif name in in_path or any(isinstance(one, params.Query) for one in said):
            required = parameter.default is inspect.Parameter.empty
            of = _Value(name, TypeAdapter(kind), _REFUSED if required else parameter.default)
        if of is None and kind is not Request:
            return None
        arguments.append((name, of))
    return _Call(function, tuple(arguments))


class PublicApplication(FastAPI):
    """A FastAPI application whose enclosed requests take a shorter way to the same functions."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  (FastAPI's own)
        super().__init__(**options)
        self._front: ASGIApp | None = None
        self.enclosed: ASGIApp = self
        """Answers what an envelope held."""

    def take_envelopes(self, server: Server, direct: Direct, counted: Callable[[ASGIApp], ASGIApp]) -> None:
        """Take envelopes from now on, all of them ``counted``; called once routes and handlers of errors are there."""
        self.enclosed = _Enclosed(self, direct)
        inside = Envelope(self.enclosed, server)
        unexpected: Any = self.exception_handlers.get(Exception)
        self._front = ServerErrorMiddleware(counted(inside), handler=unexpected)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._front is None or not is_sealed(scope):
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        await self._front(scope, receive, send)


class _Enclosed:
    """Takes what an envelope held: directly, or, where that cannot be, as FastAPI would."""

    def __init__(self, app: FastAPI, direct: Direct) -> None:
        self._direct = direct
        self._handlers: dict[Any, Any] = dict(app.exception_handlers)
        others = {kind: handler for kind, handler in self._handlers.items() if kind is not Exception}
        self._otherwise = ExceptionMiddleware(AsyncExitStackMiddleware(app.router), handlers=others)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._direct.find(scope["method"], scope["path"], scope["query_string"].decode("ascii"))
        if found is None:
            await self._otherwise(scope, receive, send)
            return
        scope["route"] = found.route
        request = Request(scope, receive)
        try:
            answer = await found.answer(request)
        except (MoietyError, ClientDisconnect) as error:
            kind = MoietyError if isinstance(error, MoietyError) else ClientDisconnect
            answer = await self._handlers[kind](request, error)
        await answer(scope, receive, send)
