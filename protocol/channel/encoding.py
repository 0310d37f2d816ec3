"""Content made short, or equally long whatever it says: compact, padded or deflated (docs/protocol.md 3, 14).

**Compact**, in letters: the same JSON in a third of the bytes. Every number, switch and absence takes nine bytes, so a
letter's length shows which fields are there, whose names and how many entries its lists hold, and no number. Digests
and signatures take a byte for two of their digits, and a text that came before takes three bytes. There is one form of
every message, which is read back to its canonical JSON.

    nothing, no, yes   0, 1, 2 | eight zeros
    number             3 | i64                    4 | IEEE 754 double
    text               5 | u16 length | ASCII     6 | u8 length | bytes of lower-case hex     7 | u16 which earlier text
    list               8 | u16 entries | the entries
    object             9 | u16 entries | the entries, by name: u8 of NAMES, or 255 | u8 length | ASCII; then the value

All integers are big-endian. An earlier text is counted from 0, in the order in which texts first stand as 5 or 6.

**Padded**: HPKE hides what a letter says and shows how long it is. So the length follows from what the relaying servers
know anyway: which fields are there, whom lists name, how many rounds were skipped. No number shows in the compact form;
a notice, which holds a text, is filled up inside its seal to one length.

    u32 length of the content, big-endian | content | zeros

**Deflated**, in sessions, where that is shorter: a view differs from the one before in a few digests and signatures. So
a request can name an answer that its site holds, and the server, if it still holds that too, deflates the next one
against it (RFC 1950 with a preset dictionary, whose checksum is in the stream; else RFC 1951).
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from typing import Final

from protocol.channel.message import MAX_CONTROL_BYTES, Message
from protocol.errors import MalformedMessage, TooLarge

NUMBER_BYTES: Final = 8
_NAMED: Final = """
    agreed_set agreed_set_digest announcement announcement_digest attempt attestations cause checkpoint_digest
    checks ckks_key_id ckks_key_seed clause closes_at_s code commitment_a commitment_b commitment_digest
    commitments content_key contributions counted declined failed_check found go grid half_digest
    least_contributors listed message missed model_digest model_version needed numerator opens outcome paused
    previous purpose reason release_digest release_set requester roster_head round salt share_kind side
    signatures signer since_s site site_key sites skipped study_digest sum_digest sum_release tag_seed
    tag_seed_hash totals value values weight_list weight_list_digest weights
"""
NAMES: Final = tuple(_NAMED.split())
"""The names of the fields that letters have; at the end more can be added. One that is not here is spelled."""

_PLAIN: Final = (None, False, True)
_INTEGER, _DOUBLE, _TEXT, _HEX, _AGAIN, _LIST, _OBJECT = range(3, 10)
_SPELLED: Final = 255
_PLACES: Final = {name: place for place, name in enumerate(NAMES)}
_DIGITS: Final = re.compile(r"(?:[0-9a-f]{2}){8,255}")
_DEEPEST: Final = 24
_SHORT: Final = struct.Struct(">BH")
_I64: Final = struct.Struct(">q")
_F64: Final = struct.Struct(">d")
_Value = object


def pack_message(message: Message) -> bytes:
    """The compact form of a message. Raises: MalformedMessage, for a number, text or list that it does not hold"""
    writer = _Writer()
    writer.value(message.model_dump(mode="json"))
    return bytes(writer.made)


def unpack_message(data: bytes) -> bytes:
    """The canonical JSON of a message in its compact form.

    Raises: MalformedMessage, also for a form that ``packed`` does not write
            TooLarge, before what a few bytes stand for takes more memory than a control message
    """
    reader = _Reader(data)
    found = reader.value(0)
    if reader.at != len(data):
        raise MalformedMessage(f"a letter's content ends {len(data) - reader.at} bytes before its length says")
    return json.dumps(found, separators=(",", ":"), allow_nan=False).encode()


class _Writer:
    def __init__(self) -> None:
        self.made = bytearray()
        self._texts: dict[str, int] = {}

    def value(self, value: _Value) -> None:
        if isinstance(value, str):
            self._text(value)
        elif isinstance(value, dict):
            self._begin(_OBJECT, len(value))
            for name in sorted(value):
                self._name(name)
                self.value(value[name])
        elif isinstance(value, list):
            self._begin(_LIST, len(value))
            for entry in value:
                self.value(entry)
        else:
            self._number(value)

    def _number(self, value: _Value) -> None:
        if value is None or isinstance(value, bool):
            self.made += bytes([_PLAIN.index(value)]) + bytes(NUMBER_BYTES)
        elif isinstance(value, int):
            if not -(2**63) <= value < 2**63:
                raise MalformedMessage(f"a number of a letter takes {value.bit_length()} bits, at most 63 fit")
            self.made += bytes([_INTEGER]) + _I64.pack(value)
        else:
            assert isinstance(value, float), "JSON knows nothing else"
            self.made += bytes([_DOUBLE]) + _F64.pack(value)

    def _text(self, text: str) -> None:
        before = self._texts.get(text)
        if before is not None:
            self._begin(_AGAIN, before)
            return
        self._texts[text] = len(self._texts)
        if _DIGITS.fullmatch(text):
            self.made += bytes([_HEX, len(text) // 2]) + bytes.fromhex(text)
        else:
            spelled = json.dumps(text)[1:-1].encode()
            self._begin(_TEXT, len(spelled))
            self.made += spelled

    def _begin(self, kind: int, number: int) -> None:
        if number >= 2**16:
            raise MalformedMessage(f"a text or a list of a letter has {number} entries, at most {2**16 - 1} fit")
        self.made += _SHORT.pack(kind, number)

    def _name(self, name: str) -> None:
        place = _PLACES.get(name)
        if place is None:
            self.made += bytes([_SPELLED, len(name)]) + name.encode("ascii")
        else:
            self.made.append(place)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.at = 0
        self._data = data
        self._texts: list[str] = []
        self._known: dict[str, int] = {}
        """Texts, with the bytes that each takes in JSON."""
        self._stands_for_bytes = 0

    def value(self, depth: int) -> _Value:
        if depth > _DEEPEST:
            raise MalformedMessage(f"a letter's content is nested deeper than {_DEEPEST} levels")
        kind = self._take(1)[0]
        if kind < _INTEGER:
            if any(self._take(NUMBER_BYTES)):
                raise MalformedMessage("a switch or an absence in a letter is followed by something")
            return _PLAIN[kind]
        if kind == _INTEGER:
            return int(_I64.unpack(self._take(NUMBER_BYTES))[0])
        if kind == _DOUBLE:
            return self._double()
        if kind in (_TEXT, _HEX, _AGAIN):
            return self._counted(self._text(kind))
        if kind == _LIST:
            return [self.value(depth + 1) for _ in range(self._short())]
        if kind == _OBJECT:
            return self._object(depth)
        raise MalformedMessage(f"a letter's content has the unknown mark {kind}")

    def _double(self) -> float:
        found = float(_F64.unpack(self._take(NUMBER_BYTES))[0])
        if found - found != 0:
            raise MalformedMessage("a number of a letter is infinite, or none")
        return found

    def _text(self, kind: int) -> str:
        if kind == _AGAIN:
            which = self._short()
            if which >= len(self._texts):
                raise MalformedMessage("a letter's content refers to a text that is not in it")
            return self._texts[which]
        spelled = self._take(self._take(1)[0]).hex().encode() if kind == _HEX else self._take(self._short())
        found = self._spelled(spelled)
        if found in self._known or bool(_DIGITS.fullmatch(found)) is not (kind == _HEX):
            raise MalformedMessage("a text in a letter is not in its shortest form")
        self._known[found] = len(spelled)
        self._texts.append(found)
        return found

    @staticmethod
    def _spelled(spelled: bytes) -> str:
        try:
            found = json.loads(b'"' + spelled + b'"')
        except ValueError:
            found = None
        if not isinstance(found, str) or json.dumps(found)[1:-1].encode() != spelled:
            raise MalformedMessage("a text in a letter is not written as canonical JSON writes it")
        return found

    def _object(self, depth: int) -> dict[str, _Value]:
        found: dict[str, _Value] = {}
        last = ""
        for _ in range(self._short()):
            name = self._counted(self._name())
            if name <= last:
                raise MalformedMessage("the fields of a letter's content are not in order")
            found[name], last = self.value(depth + 1), name
        return found

    def _name(self) -> str:
        place = self._take(1)[0]
        if place < len(NAMES):
            return NAMES[place]
        try:
            name = self._take(self._take(1)[0]).decode("ascii") if place == _SPELLED else ""
        except UnicodeDecodeError:
            name = ""
        if not name or name in _PLACES:
            raise MalformedMessage("a field of a letter's content has no name, or not the short one")
        return name

    def _counted(self, text: str) -> str:
        self._stands_for_bytes += self._known.get(text, len(text))
        if self._stands_for_bytes > MAX_CONTROL_BYTES:
            raise TooLarge(f"a letter's content stands for more than {MAX_CONTROL_BYTES} bytes")
        return text

    def _short(self) -> int:
        return int.from_bytes(self._take(2), "big")

    def _take(self, length: int) -> bytes:
        taken = self._data[self.at : self.at + length]
        if len(taken) != length:
            raise MalformedMessage("a letter's content is cut off")
        self.at += length
        return taken


LENGTH_BYTES: Final = 4


def pad(content: bytes, length: int) -> bytes:
    """``content`` as ``length`` bytes. Raises: MalformedMessage when it does not fit"""
    if LENGTH_BYTES + len(content) > length:
        raise MalformedMessage(
            f"a letter's content has {len(content)} bytes, its kind takes {length - LENGTH_BYTES}: shorten its text"
        )
    return len(content).to_bytes(LENGTH_BYTES, "big") + content + bytes(length - LENGTH_BYTES - len(content))


def unpad(padded: bytes) -> bytes:
    """The inverse of ``pad``. Raises: MalformedMessage, unless what follows the content is zeros"""
    stated = int.from_bytes(padded[:LENGTH_BYTES], "big")
    content, rest = padded[LENGTH_BYTES : LENGTH_BYTES + stated], padded[LENGTH_BYTES + stated :]
    if len(padded) < LENGTH_BYTES + stated or any(rest):
        raise MalformedMessage(
            f"a letter of {len(padded)} bytes says that its content has {stated}, and what follows must be zeros"
        )
    return content


def shortened(text: str, most_bytes: int) -> str:
    """The longest beginning of ``text`` that takes at most so many bytes in canonical JSON."""
    kept, size = [], 2
    for character in text:
        size += len(json.dumps(character)) - 2
        if size > most_bytes:
            break
        kept.append(character)
    return "".join(kept)


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
