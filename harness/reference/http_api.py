"""The interface between agents and servers, from the servers' own routes."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, FastAPI

from harness.reference.markdown import first_paragraph, page, table
from servers.routes import contributions, enrolment, health, mail, peer, roster, rounds, studies, uploads

_GROUPS = {
    "Studies": studies.router,
    "The roster": roster.router,
    "Rounds": rounds.router,
    "Contributions": contributions.router,
    "Uploads in parts": uploads.router,
    "Letters": mail.router,
    "Enrolment": enrolment.router,
    "Between the two servers": peer.router,
    "Is it alive": health.alive,
    "The operator's own port": health.router,
}


def http_api_page() -> str:
    """The reference of the HTTP interface."""
    return page(
        "HTTP interface",
        "Agents call servers and server A calls server B; no server ever calls a site. Every request but those of "
        "health and enrolment is signed and sealed: on the wire it is a POST to `/v1/sealed` or `/v1/peer/sealed`, and "
        "the paths here are inside ([protocol](../protocol.md), section 14). A running server describes the same at "
        "`/openapi.json` and `/docs` of its operator's own port. Errors are problem documents (RFC 9457) with a code "
        "of [these](errors.md).",
        *(_section(title, router) for title, router in _GROUPS.items()),
    )


def _section(title: str, router: APIRouter) -> str:
    app = FastAPI(title=title)
    app.include_router(router)
    rows = [
        (f"`{method.upper()} {path}`", _about(told), _body(told))
        for path, methods in app.openapi()["paths"].items()
        for method, told in methods.items()
    ]
    return f"## {title}\n\n" + table(["request", "what it does", "body"], rows)


def _about(told: dict[str, Any]) -> str:
    return first_paragraph(told.get("description")) or str(told["summary"])


def _body(told: dict[str, Any]) -> str:
    asked = told.get("requestBody", {})
    kinds = ", ".join(f"`{kind}`" for kind in asked.get("content", {}))
    return ", ".join(part for part in (asked.get("description", ""), kinds) if part)
