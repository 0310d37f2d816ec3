"""Fingerprints of public cards, to be read aloud over the phone: forty decimal digits in groups of five.

They are SHA-256 modulo 10^40, 132 bits: whoever wants another card with the same digits
tries 2^132 of them. Digits are read the same way in every language, and need no list of words.
"""

from __future__ import annotations

import hmac
import re
from typing import Final

from protocol.errors import ConfigurationError
from protocol.wire.message import Message

DIGITS: Final = 40
_GROUP: Final = 5
_BETWEEN: Final = re.compile(r"[\s.,/-]+")


def fingerprint_of(card: Message) -> str:
    """Eight groups of five digits, of everything in the card."""
    digits = f"{int(card.digest(), 16) % 10**DIGITS:0{DIGITS}d}"
    return " ".join(digits[start : start + _GROUP] for start in range(0, DIGITS, _GROUP))


def require_fingerprint(read: str, card: Message, whose: str) -> None:
    """Compare what was read over the phone, in time that does not depend on where it differs.

    Raises: ConfigurationError, with neither the digits that were expected nor where they differ
    """
    digits = _BETWEEN.sub("", read)
    if not (digits.isascii() and digits.isdigit() and len(digits) == DIGITS):
        raise ConfigurationError(
            f"option --fingerprint: {DIGITS} digits in groups of {_GROUP}, as {whose} reads them out; spaces do not "
            f"matter; found {len(digits)} characters"
        )
    if not hmac.compare_digest(digits, _BETWEEN.sub("", fingerprint_of(card))):
        raise ConfigurationError(
            f"option --fingerprint: what was read is not the fingerprint of this card of {whose}; nothing was kept. "
            "Have all the digits read once more, by a voice that you know; if they still differ, somebody put "
            "another card in its place: have it sent on another way"
        )
