"""One example of every message of enrolment, all fields of them (``examples.py``)."""

from __future__ import annotations

from typing import Final

from tests.frozen.values import Fields, digest, party, signature, signed

OPERATOR_CARD: Final[Fields] = {
    "federation": "clinics",
    "side": "a",
    "party": party("operator-a", "operator", url="https://a.example:8441"),
    "ca": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
}
_SITE: Final = party("clinic-1", "site", samples=101)
_NAMED: Final[Fields] = {"name": "clinic-1", "party": digest("card of clinic-1")}
_FOUNDING: Final[Fields] = {
    "roster": digest("roster"),
    "sites": [_NAMED],
    "signatures": [signature("clinic-1"), signature("operator-a")],
}
_REGISTRATION: Final[Fields] = {"secret": digest("secret of an invitation"), "party": _SITE}
_REGISTRANT: Final[Fields] = {"party": _SITE, "requester": True, "admitted": True, "claim": signature("clinic-1")}
_ROSTER: Final[Fields] = {
    "federation": "clinics",
    "operator_a": OPERATOR_CARD["party"],
    "operator_b": party("operator-b", "operator", url="https://b.example:8442"),
    "requester": "clinic-1",
    "sites": [_SITE],
}
_CHANGE: Final[Fields] = {
    "federation": "clinics",
    "first": digest("first link"),
    "number": 3,
    "previous": digest("link before"),
    "reason": "operator-b moves",
    "roster": _ROSTER,
    "claims": [signature("clinic-1")],
}
_REFUSED: Final[Fields] = {"code": "bad_signature", "detail": "this invitation has expired"}
ENROLMENT_EXAMPLES: Final[dict[str, Fields]] = {
    "operator_card": OPERATOR_CARD,
    "invitation": {
        "federation": "clinics",
        "side": "a",
        "operator": "operator-a",
        "url": "https://a.example:8441",
        "card": digest("card of operator-a"),
        "site": "clinic-1",
        "requester": True,
        "expires_at_s": 1_800_000_000,
        "secret": digest("secret of an invitation"),
    },
    "registration": _REGISTRATION,
    "standing_question": {"link": 3, "claim": signature("clinic-1")},
    "changing": {
        "number": 3,
        "change": digest("change"),
        "reason": "clinic-1 joins",
        "sites": [_NAMED],
        "remove": ["clinic-2"],
        "signatures": [signature("clinic-0"), signature("operator-a")],
    },
    "named_site": _NAMED,
    "founding": _FOUNDING,
    "enrolment_asked": {
        "version": "moiety/2",
        "federation": "clinics",
        "to": digest("card of operator-a"),
        "name": "clinic-1",
        "at_s": 1_800_000_000,
        "question": _FOUNDING,
    },
    "registrant": _REGISTRANT,
    "standing": {
        "admitted": True,
        "waits_for": ["operator-b to admit clinic-1"],
        "peer": OPERATOR_CARD,
        "registrants": [_REGISTRANT],
        "links": 4,
        "renews": True,
        "roster": signed(_ROSTER, "operator-a", "operator-b", "clinic-1"),
        "change": signed(_CHANGE, "operator-a", "operator-b", "clinic-1"),
    },
    "founded": {"signature": signature("operator-a"), "in_place": True},
    "enrolment_refused": _REFUSED,
    "enrolment_answered": {"version": "moiety/2", "asked": digest("a question"), "answer": _REFUSED},
}
