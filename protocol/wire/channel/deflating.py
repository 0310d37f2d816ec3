"""Control messages deflated where that is shorter, against an earlier answer of the session where both ends hold it.

A view differs from the one before in a few digests and signatures. So a request can name an answer that its site holds,
and the server, if it still holds that too, deflates the next one against it (RFC 1950 with a preset dictionary, whose
checksum is in the stream; else RFC 1951).
"""

from __future__ import annotations

import zlib
from typing import Final

from protocol.errors import MalformedMessage, TooLarge

LEAST_BYTES: Final = 192
"""Shorter messages are as long as this anyway once they are padded."""
KEPT: Final = 4
"""Answers that a server holds of one session for later ones: of as many studies a site can follow."""
KEPT_BYTES: Final = 2**14
"""A longer answer is not held."""
DEFLATED: Final = 4
AGAINST_EARLIER: Final = 5

_RAW_DEFLATE: Final = -15
_WITH_CHECKSUMS: Final = 15


def worth_keeping(body: bytes) -> bool:
    """Return whether to keep this answer so that a later one may be deflated against it."""
    return LEAST_BYTES < len(body) <= KEPT_BYTES


class EarlierAnswers:
    """The newest answers of one session that later ones can be deflated against, by the counters of their requests."""

    def __init__(self) -> None:
        self._held: dict[int, bytes] = {}

    def keep(self, counter: int, body: bytes) -> None:
        if worth_keeping(body):
            self._held[counter] = body
            if len(self._held) > KEPT:
                del self._held[next(iter(self._held))]

    def of(self, counter: int) -> bytes:
        """The answer to that request; nothing, where it is not held any more."""
        return self._held.get(counter, b"")


def deflated(body: bytes, earlier: bytes) -> tuple[bytes, int]:
    """The shortest form of a body, and which one it is: 0 for the body itself, or one of those above."""
    if len(body) <= LEAST_BYTES:
        return body, 0
    if earlier:
        writer = zlib.compressobj(wbits=_WITH_CHECKSUMS, zdict=earlier)
        made, form = writer.compress(body) + writer.flush(), AGAINST_EARLIER
    else:
        made, form = zlib.compress(body, wbits=_RAW_DEFLATE), DEFLATED
    return (made, form) if len(made) < len(body) else (body, 0)


def inflated(body: bytes, form: int, earlier: bytes, most_bytes: int) -> bytes:
    """Inflate an answer that was deflated in that form, which is not 0.

    Raises: MalformedMessage, also where it was deflated against another answer; TooLarge, before it takes more memory
    """
    if form == AGAINST_EARLIER:
        reader = zlib.decompressobj(wbits=_WITH_CHECKSUMS, zdict=earlier)
    else:
        reader = zlib.decompressobj(wbits=_RAW_DEFLATE)
    try:
        found = reader.decompress(body, most_bytes + 1)
    except zlib.error:
        raise MalformedMessage(
            "an answer in a session says that it is deflated, and is not, or against another answer than is held here"
        ) from None
    if len(found) > most_bytes:
        raise TooLarge(f"an answer in a session inflates to more than the {most_bytes} bytes that are allowed here")
    if not reader.eof or reader.unused_data:
        raise MalformedMessage("an answer in a session is deflated, and ends too soon or too late")
    return found
