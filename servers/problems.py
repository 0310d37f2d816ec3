"""One table from error codes to HTTP status and public title; problem+json bodies (RFC 9457) both ways."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from protocol.errors import ErrorCode, MoietyError, Unavailable, error_of
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


# --- what an operator does about each kind of refusal ---

ALARMS: Final = frozenset(
    {
        ErrorCode.CONSISTENCY_CHECK_FAILED,
        ErrorCode.CORRELATION_REUSED,
        ErrorCode.TRANSCRIPT_MISMATCH,
        ErrorCode.PROTOCOL_VIOLATION,
    }
)
"""The other operator is called at the first one."""
_AT_SITES: Final = "raised at sites, not at servers: report it"
_LATE: Final = "a late or confused site; it catches up by itself"
_CALL: Final = "stop the study, call the other operator, compare logs and versions"
FIXES: Final[dict[ErrorCode, str]] = {
    ErrorCode.CONFIGURATION: "a file, key or setting on this machine: the log says which",
    ErrorCode.UNUSABLE_UPDATE: _AT_SITES,
    ErrorCode.POLICY_REFUSAL: _AT_SITES,
    ErrorCode.LOCAL_OPTIMUM: _AT_SITES,
    ErrorCode.MALFORMED_MESSAGE: "a proxy that changes bodies, or a caller of another kind",
    ErrorCode.UNKNOWN_STUDY: "asked too early or too late; agents ask again",
    ErrorCode.UNKNOWN_PARTY: "a caller that is not in the roster: does it have this federation's?",
    ErrorCode.NOT_LISTED: "a caller that is not in this study or round; nothing to do",
    ErrorCode.UNKNOWN_RESOURCE: "asked too early or too late; agents ask again",
    ErrorCode.OUTPUT_GONE: "a site came too late for a sum and takes the next checkpoint: more outputs_kept_rounds",
    ErrorCode.BAD_SIGNATURE: "a clock that is off by a minute, an old roster, a proxy that changes headers, or "
    "somebody who tries: compare clocks first",
    ErrorCode.BROKEN_SEAL: "sealed for another key or altered on the way: an old roster, or a proxy",
    ErrorCode.COMMITMENT_MISMATCH: "a share altered on the way, or a site that changed its mind: ask the site",
    ErrorCode.WRONG_ROUND: _LATE,
    ErrorCode.ANNOUNCEMENT_MISMATCH: _LATE,
    ErrorCode.ROSTER_UNKNOWN: "nothing while a change of the roster is on its way, else put the newest file in place",
    ErrorCode.ROSTER_REFUSED: "an older roster or a fork: compare 'moiety roster show' with the other parties",
    ErrorCode.CONFLICTING_MESSAGE: "a site restored from an old backup, or two agents with one key: ask the site",
    ErrorCode.TOO_LARGE: "a request beyond the limits of the settings, or of what the study fixes",
    ErrorCode.CONSISTENCY_CHECK_FAILED: "server A's transfers did not add up: a bug, or an attempt to learn masks; "
    + _CALL,
    ErrorCode.CORRELATION_REUSED: _CALL,
    ErrorCode.TRANSCRIPT_MISMATCH: _CALL,
    ErrorCode.SHARE_ALTERED: "a stored share was cut, altered or deleted: the log names server and site; on that "
    "server look at the disk and at who can write to it",
    ErrorCode.AGGREGATE_OUT_OF_BOUNDS: _AT_SITES,
    ErrorCode.SUM_FORGED: _AT_SITES,
    ErrorCode.SUM_ALTERED: _AT_SITES,
    ErrorCode.MODEL_DIVERGED: _AT_SITES,
    ErrorCode.PROTOCOL_VIOLATION: _CALL,
    ErrorCode.UNAVAILABLE: "the network or a restart, tried again; in numbers a flood, or a proxy that is not in "
    "forwarded_by",
    ErrorCode.STORAGE_FULL: "make room on the disk; nothing acknowledged was lost",
    ErrorCode.PEER_UNREACHABLE: "the other server is away or out of reach: call its operator if it lasts",
    ErrorCode.OTHER_VERSION: "a party runs another release: agree on one, the refusal names it",
    ErrorCode.ROLLED_BACK: "an older database was put back: the log says whose; that operator restores the newest one, "
    "or runs 'moiety server accept-rollback' (docs/operating.md, \"Backup and restore\")",
    ErrorCode.HISTORY_UNKNOWN: "a server has just started; the servers compare how far they came and go on",
    ErrorCode.SESSION_UNKNOWN: "nothing to do: after a restart every site opens a session anew",
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


def error_from(body: bytes, status: int) -> MoietyError:
    """The error that a peer's problem+json body stands for."""
    try:
        members = json.loads(body)
        code, detail = ErrorCode(members["code"]), printable(str(members["detail"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return Unavailable(f"the peer answered with status {status} and no readable problem")
    return error_of(code, detail)
