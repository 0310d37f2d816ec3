"""Answers: canonical messages, sealed streams, and problem+json in the API's description."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final

from fastapi import Response
from fastapi.responses import StreamingResponse

from protocol.channel.commitment import head_digest
from protocol.channel.sealing import SealedMessage
from protocol.channel.signing import DigestField, digest_value
from protocol.errors import ErrorCode
from protocol.messages.control import Message
from servers.event_loop import SHORT_BYTES
from servers.problems import MEDIA_TYPE, problem_body, status_of
from servers.server import Server

OCTETS: Final = "application/octet-stream"
_DESCRIPTION: Final = "Refused: problem+json (RFC 9457) with a stable code and a detail"
PROBLEM: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {"description": _DESCRIPTION, "content": {MEDIA_TYPE: {}}},
    "5XX": {"description": "Not now: problem+json; try again", "content": {MEDIA_TYPE: {}}},
}


def message_answer(message: Message, status: int = 200) -> Response:
    return Response(message.canonical(), status_code=status, media_type="application/json")


def shared_answer(message: Message) -> Response:
    """As ``message_answer``, of a message that many are answered with."""
    return Response(message.canonical_kept(), media_type="application/json")


def stream_answer(pieces: Iterable[bytes | memoryview], body_digest: bytes) -> StreamingResponse:
    """Bytes that are sealed already, of which the SHA-256 is known before they are read."""
    headers = {DigestField.CONTENT.value: digest_value(DigestField.CONTENT, body_digest)}
    return StreamingResponse(pieces, media_type=OCTETS, headers=headers)


def sealed_answer(message: SealedMessage, at_hand: Callable[[], bool] = lambda: False) -> Response:
    """A message that is sealed while it is sent: what is signed is its head; a short one at once.

    ``at_hand`` says whether the next piece waits for nothing but being sealed, which takes less than a thread to wake.
    """
    headers = {DigestField.SEALED_HEAD.value: digest_value(DigestField.SEALED_HEAD, head_digest(message.head))}
    if message.length is not None and message.length <= SHORT_BYTES:
        return Response(message.whole(), media_type=OCTETS, headers=headers)
    if message.length is not None:
        headers["content-length"] = str(message.length)
    pieces = _in_turn(chain([message.head], message.body), at_hand)
    return StreamingResponse(pieces, media_type=OCTETS, headers=headers)


async def _in_turn(pieces: Iterator[bytes], at_hand: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Piece by piece; between two of them others have their turn."""
    while True:
        if at_hand():
            await asyncio.sleep(0)
            piece = next(pieces, None)
        else:
            piece = await asyncio.to_thread(next, pieces, None)
        if piece is None:
            return
        yield piece


def octets_answer(body: bytes) -> Response:
    return Response(body, media_type=OCTETS)


def problem_answer(
    server: Server, code: ErrorCode, detail: str, status: int | None = None, *, noted: bool = True
) -> Response:
    """A refusal as problem+json, counted; ``status`` where HTTP itself asks for another than the table's.

    ``noted``: among the last refusals, which the operator reads.
    """
    server.metrics.refusals.labels(code.value).inc()
    if noted:
        server.recent.note_refusal(code, detail)
    body = problem_body(code, detail, status)
    return Response(body, status_code=status or status_of(code), media_type=MEDIA_TYPE)


def done() -> Response:
    return Response(status_code=204)


def body_of(kind: str, sealed: bool = False) -> dict[str, Any]:
    """The request body in the API's description: bodies are read and checked by the protocol's own parsers."""
    media = OCTETS if sealed else "application/json"
    return {"requestBody": {"required": True, "description": kind, "content": {media: {}}}}
