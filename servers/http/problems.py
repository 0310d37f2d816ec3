"""One table from error codes to HTTP status and public title; problem+json bodies (RFC 9457) both ways."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from protocol.errors import ErrorCode, MalformedMessage, MoietyError, PolicyRefusal, RefusedMessage, Unavailable
from protocol.text import printable

MEDIA_TYPE: Final = "application/problem+json"
_TYPE_PREFIX: Final = "urn:moiety:problem:"


@dataclass(frozen=True)
class Problem:
    """The part of one kind of error that the caller may see."""

    status: int
    title: str


PROBLEMS: Final[dict[ErrorCode, Problem]] = {
    ErrorCode.CONFIGURATION: Problem(500, "This server is not configured for this"),
    ErrorCode.UNUSABLE_UPDATE: Problem(422, "The update cannot be shared"),
    ErrorCode.POLICY_REFUSAL: Problem(409, "A site's policy refuses"),
    ErrorCode.LOCAL_OPTIMUM: Problem(409, "The local optimum was reached"),
    ErrorCode.MALFORMED_MESSAGE: Problem(400, "The message is not in the agreed format"),
    ErrorCode.UNKNOWN_STUDY: Problem(404, "No such study here"),
    ErrorCode.UNKNOWN_PARTY: Problem(404, "No such party in the roster"),
    ErrorCode.NOT_LISTED: Problem(403, "Not allowed for this party"),
    ErrorCode.UNKNOWN_RESOURCE: Problem(404, "Not here, or not yet"),
    ErrorCode.OUTPUT_GONE: Problem(410, "Not kept any more"),
    ErrorCode.BAD_SIGNATURE: Problem(401, "The signature is not accepted"),
    ErrorCode.BROKEN_SEAL: Problem(400, "The seal does not open"),
    ErrorCode.COMMITMENT_MISMATCH: Problem(400, "Not the share that was committed to"),
    ErrorCode.WRONG_ROUND: Problem(409, "Not possible in the round's present state"),
    ErrorCode.ANNOUNCEMENT_MISMATCH: Problem(409, "Bound to another announcement"),
    ErrorCode.ROSTER_UNKNOWN: Problem(409, "A link of the roster that is not known here yet"),
    ErrorCode.ROSTER_REFUSED: Problem(409, "Not a continuation of the roster"),
    ErrorCode.CONFLICTING_MESSAGE: Problem(409, "The same id came before with other bytes"),
    ErrorCode.TOO_LARGE: Problem(413, "Too large"),
    ErrorCode.CONSISTENCY_CHECK_FAILED: Problem(409, "The oblivious transfer's consistency check failed"),
    ErrorCode.CORRELATION_REUSED: Problem(409, "A correlation serves one product, ever"),
    ErrorCode.TRANSCRIPT_MISMATCH: Problem(409, "The two servers say different things"),
    ErrorCode.AGGREGATE_OUT_OF_BOUNDS: Problem(409, "The aggregate breaks its bound"),
    ErrorCode.SHARE_ALTERED: Problem(409, "A stored share is not what was received"),
    ErrorCode.SUM_FORGED: Problem(409, "The sum is not that of the released sites"),
    ErrorCode.SUM_ALTERED: Problem(409, "The sum is not what a server signed"),
    ErrorCode.MODEL_DIVERGED: Problem(409, "The model differs from the announced one"),
    ErrorCode.PROTOCOL_VIOLATION: Problem(409, "The protocol was broken"),
    ErrorCode.UNAVAILABLE: Problem(503, "Not available now; try again"),
    ErrorCode.STORAGE_FULL: Problem(507, "No room left to store this"),
    ErrorCode.PEER_UNREACHABLE: Problem(502, "The other server cannot be reached"),
    ErrorCode.OTHER_VERSION: Problem(400, "Another version of the protocol is spoken here"),
    ErrorCode.ROLLED_BACK: Problem(503, "An older database was put back"),
    ErrorCode.HISTORY_UNKNOWN: Problem(503, "The servers have not compared their histories yet"),
    ErrorCode.SESSION_UNKNOWN: Problem(401, "No such session, or not any more"),
}


def status_of(code: ErrorCode) -> int:
    return PROBLEMS[code].status


def problem_body(code: ErrorCode, detail: str, status: int | None = None) -> bytes:
    """The response body for one error; ``status`` where HTTP itself asks for another than the table's."""
    problem = PROBLEMS[code]
    members = {
        "type": _TYPE_PREFIX + code,
        "title": problem.title,
        "status": status or problem.status,
        "detail": detail,
        "code": code.value,
    }
    return json.dumps(members).encode()


def internal_problem() -> bytes:
    """The body for an error nobody expected: no internals."""
    members = {
        "type": "about:blank",
        "title": "Internal error",
        "status": 500,
        "detail": "the server failed on this request; its operator finds the cause in the log",
        "code": "internal",
    }
    return json.dumps(members).encode()


def _tree(root: type[MoietyError]) -> Iterator[type[MoietyError]]:
    for kind in root.__subclasses__():
        yield kind
        yield from _tree(kind)


def error_from(body: bytes, status: int) -> MoietyError:
    """The error that a peer's problem+json body stands for."""
    try:
        members = json.loads(body)
        code, detail = ErrorCode(members["code"]), printable(str(members["detail"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return Unavailable(f"the peer answered with status {status} and no readable problem")
    matching = [kind for kind in _tree(MoietyError) if kind.__dict__.get("code") is code]
    exact = [kind for kind in matching if kind is not RefusedMessage]
    if not exact or issubclass(exact[0], PolicyRefusal):  # a server has no policy to refuse by
        return MalformedMessage(detail)
    return exact[0](detail)
