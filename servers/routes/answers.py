"""How answers leave: canonical messages, sealed streams, and problem+json in the API's description."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from fastapi import Response
from fastapi.responses import StreamingResponse

from protocol.wire.messages import Message
from servers.problems import MEDIA_TYPE

OCTETS: Final = "application/octet-stream"
_DESCRIPTION: Final = "Refused: problem+json (RFC 9457) with a stable code and a detail"
PROBLEM: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {"description": _DESCRIPTION, "content": {MEDIA_TYPE: {}}},
    "5XX": {"description": "Not now: problem+json; try again", "content": {MEDIA_TYPE: {}}},
}


def message_answer(message: Message, status: int = 200) -> Response:
    """A control message's canonical bytes."""
    return Response(message.canonical(), status_code=status, media_type="application/json")


def stream_answer(pieces: Iterator[bytes]) -> StreamingResponse:
    return StreamingResponse(pieces, media_type=OCTETS)


def octets_answer(body: bytes) -> Response:
    return Response(body, media_type=OCTETS)


def done() -> Response:
    return Response(status_code=204)


def body_of(kind: str, sealed: bool = False) -> dict[str, Any]:
    """The request body in the API's description: bodies are read and checked by the protocol's own parsers."""
    media = OCTETS if sealed else "application/json"
    return {"requestBody": {"required": True, "description": kind, "content": {media: {}}}}
