"""What an operator does about each kind of refusal, in a sentence."""

from __future__ import annotations

from typing import Final

from protocol.errors import ErrorCode

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
    "or runs 'moiety server restored' (docs/operating.md, \"Backup and restore\")",
    ErrorCode.HISTORY_UNKNOWN: "a server has just started; the servers compare how far they came and go on",
    ErrorCode.SESSION_UNKNOWN: "nothing to do: after a restart every site opens a session anew",
}
