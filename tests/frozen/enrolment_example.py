"""One example of every message of enrolment, all fields of them (``examples.py``)."""

from __future__ import annotations

from typing import Final

from tests.frozen.values import Fields, party

OPERATOR_CARD: Final[Fields] = {
    "federation": "clinics",
    "side": "a",
    "party": party("operator-a", "operator", url="https://a.example:8441"),
    "ca": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
}
ENROLMENT_EXAMPLES: Final[dict[str, Fields]] = {"operator_card": OPERATOR_CARD}
