"""A server's address, and the paths below it, written once for everybody (docs/protocol.md 3).

Every request is signed and goes to SEALED or PEER_SEALED; the other addresses stand inside of envelopes
(protocol/channel/envelope.py). Every body is a canonical message, a frame, or a sealed message.

A server's address is a scheme, a host, perhaps a port, and nothing that could be read in two ways. The address is part
of every signed request, compared letter by letter; a path, a user name or a missing host in it would be found out by
the first site that calls, after everybody has signed.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, WithJsonSchema

SEALED = "/v1/sealed"
"""The address of every request of a site, whatever it asks: the question is in its envelope."""
PEER_SEALED = "/v1/peer/sealed"

CARD = "/v1/card"
"""An operator's public card, for everybody."""
ENROLMENT = "/v1/enrolment"
"""The address for sites that no roster names yet; they seal to the operator (protocol/roster/enrolment.py)."""

SESSION = "/v1/session"
"""The address where a site offers a session, within an envelope (protocol/channel/session.py)."""
STUDIES = "/v1/studies"
CONTRIBUTIONS = "/v1/contributions"
ROSTER_CHANGE = "/v1/roster/changes/{number}"
"""One link of the roster's chain."""
STUDY = "/v1/studies/{study}"
END = "/v1/studies/{study}/end"
READY = "/v1/studies/{study}/ready"
VIEW = "/v1/studies/{study}/view"
MAIL = "/v1/studies/{study}/mail/{topic}/{recipient}"
ANNOUNCEMENT = "/v1/studies/{study}/rounds/{round}/announcement"
CONTRIBUTION = "/v1/studies/{study}/rounds/{round}/attempts/{attempt}/contribution"
HELD, PART, WHOLE = "/held", "/part", "/whole"
CONTRIBUTION_HELD = CONTRIBUTION + HELD
CONTRIBUTION_PART = CONTRIBUTION + PART
CONTRIBUTION_WHOLE = CONTRIBUTION + WHOLE
QUERIES = "/v1/studies/{study}/rounds/{round}/attempts/{attempt}/queries"
OPENING = "/v1/studies/{study}/rounds/{round}/attempts/{attempt}/opening"
RELEASE_SET = "/v1/studies/{study}/rounds/{round}/attempts/{attempt}/release-set"
TAG_SEED = "/v1/studies/{study}/rounds/{round}/attempts/{attempt}/tag-seed"
GO = "/v1/studies/{study}/rounds/{round}/attempts/{attempt}/go"
TAGS_FAILED = "/v1/studies/{study}/rounds/{round}/attempts/{attempt}/tags-failed"
OUTPUT = "/v1/studies/{study}/rounds/{round}/output"

PEER_HISTORY = "/v1/peer/history"
PEER_SESSION = "/v1/peer/sessions/{session}"
PEER_BASE = "/v1/peer/sessions/{session}/base"
PEER_EXTEND = "/v1/peer/sessions/{session}/batches/{batch}/extend"
PEER_ANSWER = "/v1/peer/sessions/{session}/batches/{batch}/answer"
PEER_COLLECTED = "/v1/peer/studies/{study}/rounds/{round}/attempts/{attempt}/collected"
PEER_LOCK = "/v1/peer/studies/{study}/rounds/{round}/attempts/{attempt}/lock"
PEER_AGREED_SET = "/v1/peer/studies/{study}/rounds/{round}/attempts/{attempt}/agreed-set"
PEER_CHALLENGE = "/v1/peer/studies/{study}/rounds/{round}/attempts/{attempt}/challenge"
PEER_PRODUCTS = "/v1/peer/studies/{study}/rounds/{round}/attempts/{attempt}/products"
PEER_RELEASE_SET = "/v1/peer/studies/{study}/rounds/{round}/attempts/{attempt}/release-set"
PEER_SUM_RELEASE = "/v1/peer/studies/{study}/rounds/{round}/attempts/{attempt}/sum-release"
PEER_MASKED_SUM = "/v1/peer/studies/{study}/rounds/{round}/attempts/{attempt}/masked-sum"
PEER_GO = "/v1/peer/studies/{study}/rounds/{round}/attempts/{attempt}/go"
PEER_OUTCOME = "/v1/peer/studies/{study}/rounds/{round}/attempts/{attempt}/outcome"

EVERY_SITE = "every-site"


def fill(template: str, **values: str | int) -> str:
    return template.format(**values)


def study_of(path: str) -> str | None:
    """The study that a site's request to ``path`` is about; None where it is about none."""
    begins = f"{STUDIES}/"
    return path[len(begins) :].partition("/")[0].partition("?")[0] if path.startswith(begins) else None


_LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_ADDRESS: Final = re.compile(rf"https://({_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:.]{{2,45}}\])(?::([1-9][0-9]{{0,4}}))?")
_LONGEST_HOST: Final = 253
_LAST_PORT: Final = 65535


def _server_url(url: str) -> str:
    """Raises: ValueError"""
    found = _ADDRESS.fullmatch(url)
    if found is None or len(found[1]) > _LONGEST_HOST or int(found[2] or 1) > _LAST_PORT:
        raise ValueError(
            "a server's address is https://HOST or https://HOST:PORT and nothing more: no user or password, no path or "
            "'/' behind it, names beyond ASCII in their xn-- form"
        )
    return url


ServerUrl = Annotated[
    str, AfterValidator(_server_url), WithJsonSchema({"type": "string", "pattern": f"^{_ADDRESS.pattern}$"})
]
