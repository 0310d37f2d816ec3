"""Sealed messages: readable by one party, bound to a public header, streamed in chunks (docs/protocol.md 3).

    magic "MOIETY\\x00\\x01" | u32 header length | header | u32 length | HPKE(content key, salt) | body

HPKE's info holds the header, so a sealed part opens only under the header it was made for. The body is AES-256-GCM
in chunks of 2^18 bytes; a chunk's nonce holds its place and whether it is the last (the STREAM construction of
Hoang, Reyhanitabar, Rogaway and Vizar 2015), so that chunks cannot be dropped, swapped, repeated or cut off.
Nothing here reads or writes: bytes go in, bytes come out, and memory stays at one chunk.
HPKE draws its own randomness; every other random byte is an argument. Integers are big-endian.

Chunks of a body are sealed one by one, so whoever has the content key opens those that hold what is wanted. That the
body as a whole is what its sender committed to was found when it came; here every chunk that is used is authentic and
in its place, under this key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from protocol.channel.keys import SealingKey, SealingPublicKey, require_length
from protocol.errors import BrokenSeal, MalformedMessage, ProtocolViolation, TooLarge

MAGIC: Final = b"MOIETY\x00\x01"
CHUNK_BYTES: Final = 2**18
TAG_BYTES: Final = 16
CONTENT_KEY_BYTES: Final = 32
SALT_BYTES: Final = 32
MAX_HEADER_BYTES: Final = 2**16

_SEALED_CHUNK: Final = CHUNK_BYTES + TAG_BYTES
_SHORT_BYTES: Final = 2**13
"""Room to begin with: making and clearing a chunk's costs more than opening a short body."""
_SUITE: Final = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_ENCAPSULATION_BYTES: Final = KEM.MLKEM768_X25519.enc_length()
_SEALED_KEY_BYTES: Final = _ENCAPSULATION_BYTES + CONTENT_KEY_BYTES + SALT_BYTES + TAG_BYTES
_LENGTH_BYTES: Final = 4
_PREFIX_BYTES: Final = len(MAGIC) + _LENGTH_BYTES
_BODY_INFO: Final = b"moiety/2 sealed body\x00"
_SMALL_INFO: Final = b"moiety/2 sealed message\x00"
_COUNTER_BYTES: Final = 11

Octets: TypeAlias = bytes | bytearray | memoryview


def octets(data: Octets) -> memoryview:
    """Any buffer as a row of bytes."""
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


# --- small messages ---------------------------------------------------------------------------------------------------


def seal_small(plaintext: bytes, recipient: SealingPublicKey, info: bytes) -> bytes:
    """Seal a short message in one piece; ``info`` is what it is bound to and is not sent.

    Reveals: the length, to whoever carries it
    Source:  RFC 9180 single-shot, base mode
    """
    return _SUITE.encrypt(plaintext, recipient.hpke, info=_SMALL_INFO + info)


def open_small(sealed: bytes, key: SealingKey, info: bytes) -> bytes:
    """The inverse of ``seal_small``. Raises: BrokenSeal for another key, another ``info`` or altered bytes."""
    return _open_hpke(sealed, key, _SMALL_INFO + info)


def sealed_small_length(plaintext_bytes: int) -> int:
    """Length of ``seal_small``'s result."""
    return _ENCAPSULATION_BYTES + plaintext_bytes + TAG_BYTES


def _open_hpke(sealed: bytes, key: SealingKey, info: bytes) -> bytes:
    try:
        return _SUITE.decrypt(sealed, key.hpke, info=info)
    except InvalidTag:
        raise BrokenSeal(
            "the seal does not open: it was made for another key or another context, or was altered on its way; "
            "seal it again to the key in the roster"
        ) from None


# --- bodies -----------------------------------------------------------------------------------------------------------


def sealed_length(plaintext_bytes: int) -> int:
    """Length of an encrypted body: 16 more bytes for each started chunk, at least one chunk."""
    chunks = max(1, -(-plaintext_bytes // CHUNK_BYTES))
    return plaintext_bytes + chunks * TAG_BYTES


def sealed_message_length(header_bytes: int, plaintext_bytes: int) -> int:
    return sealed_head_length(header_bytes) + sealed_length(plaintext_bytes)


def sealed_head_length(header_bytes: int) -> int:
    """Length of all that comes before the encrypted body."""
    return _PREFIX_BYTES + header_bytes + _LENGTH_BYTES + _SEALED_KEY_BYTES


def chunk_nonce(counter: int, final: bool) -> bytes:
    """A chunk's nonce: its place, and whether it is the last."""
    return counter.to_bytes(_COUNTER_BYTES, "big") + (b"\x01" if final else b"\x00")


def body_cipher(content_key: bytes) -> AESGCM:
    """Return the cipher of a body. Raises: MalformedMessage"""
    return AESGCM(require_length("a content key", content_key, CONTENT_KEY_BYTES))


def encrypt_body(content_key: bytes, chunks: Iterable[Octets]) -> Iterator[bytes]:
    """Encrypt a stream of bytes of any piece size, chunk by chunk.

    The last chunk carries the final flag and holds 1 to 2^18 bytes, none only if the whole body is empty, so a body
    has exactly one encrypted form per key.

    Requires: ``content_key`` is fresh and encrypts this body alone
    Raises:   MalformedMessage if the key is not 32 bytes
    """
    return _encrypted(body_cipher(content_key), chunks)


def _encrypted(cipher: AESGCM, chunks: Iterable[Octets]) -> Iterator[bytes]:
    held, fill, counter = bytearray(_SHORT_BYTES), 0, 0
    for piece in chunks:
        view = octets(piece)
        while len(view):
            if fill == 0 and len(view) > CHUNK_BYTES:
                yield cipher.encrypt(chunk_nonce(counter, False), view[:CHUNK_BYTES], None)
                view, counter = view[CHUNK_BYTES:], counter + 1
            elif fill == CHUNK_BYTES:
                yield cipher.encrypt(chunk_nonce(counter, False), held, None)
                fill, counter = 0, counter + 1
            else:
                taken = min(CHUNK_BYTES - fill, len(view))
                _make_room(held, fill + taken, CHUNK_BYTES)
                memoryview(held)[fill : fill + taken] = view[:taken]  # a slice of the bytearray would take a copy first
                view, fill = view[taken:], fill + taken
    yield cipher.encrypt(chunk_nonce(counter, True), memoryview(held)[:fill], None)


def _make_room(held: bytearray, needed: int, most: int) -> None:
    """A buffer that held a short body becomes one for whole chunks."""
    if needed > len(held):
        held.extend(bytes(most - len(held)))


def open_chunk(cipher: AESGCM, place: int, final: bool, chunk: Octets) -> bytes:
    """One chunk of an encrypted body by itself, that at ``place``; ``final``: it is the body's last one.

    Raises: BrokenSeal
    """
    try:
        return cipher.decrypt(chunk_nonce(place, final), chunk, None)
    except InvalidTag:
        which = "last chunk" if final else "chunk"
        raise BrokenSeal(
            f"{which} {place} of the sealed body does not open: it was altered, reordered or cut off; "
            "send the same sealed bytes again"
        ) from None


class BodyReader:
    """Opens an encrypted body that arrives in pieces of any size; holds back one chunk, which may be the last.

    After an error the reader refuses further use. What ``feed`` returned before ``finish`` succeeded is authentic
    but may be incomplete: use it only once ``finish`` has returned.

    Raises: MalformedMessage if the key is not 32 bytes; BrokenSeal on anything truncated, reordered or altered
    """

    def __init__(self, content_key: bytes) -> None:
        self._cipher = body_cipher(content_key)
        self._held = bytearray(_SHORT_BYTES)
        self._fill = 0
        self._counter = 0
        self._usable = True

    def feed(self, data: Octets) -> list[bytes]:
        """Take the next bytes; return the plaintext pieces that are ready."""
        self._claim()
        view, pieces = octets(data), []
        while len(view):
            if self._fill == 0 and len(view) > _SEALED_CHUNK:
                pieces.append(self._open(view[:_SEALED_CHUNK], final=False))
                view = view[_SEALED_CHUNK:]
            elif self._fill == _SEALED_CHUNK:
                pieces.append(self._open(self._held, final=False))
                self._fill = 0
            else:
                taken = min(_SEALED_CHUNK - self._fill, len(view))
                _make_room(self._held, self._fill + taken, _SEALED_CHUNK)
                memoryview(self._held)[self._fill : self._fill + taken] = view[:taken]
                view, self._fill = view[taken:], self._fill + taken
        self._usable = True
        return pieces

    def finish(self) -> bytes:
        """Say that nothing more comes; return the last piece (empty only for an empty body)."""
        self._claim()
        if self._fill < TAG_BYTES:
            raise BrokenSeal(f"the sealed body is cut off after {self._counter} chunks: send all of it")
        last = self._open(memoryview(self._held)[: self._fill], final=True)
        if not last and self._counter > 1:
            raise BrokenSeal("the sealed body ends with an empty chunk: the last chunk must hold what is left")
        return last

    def _claim(self) -> None:
        if not self._usable:
            raise BrokenSeal("this sealed body has already ended or failed: start again with a new reader")
        self._usable = False

    def _open(self, chunk: Octets, final: bool) -> bytes:
        opened = open_chunk(self._cipher, self._counter, final, chunk)
        self._counter += 1
        return opened


# --- sealed messages --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SealedMessage:
    """A sealed message in two parts, for a sender that signs the first. ``length``: of both, where it is known."""

    head: bytes
    body: Iterator[bytes]
    length: int | None = None

    def whole(self) -> bytes:
        """Both parts, in memory; the body can be taken only once."""
        return b"".join([self.head, *self.body])


def seal_message(
    header: bytes, chunks: Iterable[Octets], recipient: SealingPublicKey, content_key: bytes, salt: bytes
) -> SealedMessage:
    """Seal a body of any length to ``recipient``, bound to the public ``header``.

    Requires: ``content_key`` and ``salt`` are 32 fresh random bytes each, used for this message alone
    Reveals:  the header and the body's length, to whoever carries it
    Raises:   MalformedMessage on a wrong length, TooLarge on a header above 2^16 bytes
    Source:   RFC 9180; docs/protocol.md 3
    """
    return SealedMessage(sealed_head(header, recipient, content_key, salt), encrypt_body(content_key, chunks))


def sealed_head(header: bytes, recipient: SealingPublicKey, content_key: bytes, salt: bytes) -> bytes:
    """Return the head that stands before the body, for a body that ``encrypt_body`` has already made.

    Why: a header may name what is known of the body only once that is encrypted
    Requires, raises: as ``seal_message``
    """
    _check_header_length(len(header))
    secret = require_length("a content key", content_key, CONTENT_KEY_BYTES)
    secret += require_length("a salt", salt, SALT_BYTES)
    sealed_key = _SUITE.encrypt(secret, recipient.hpke, info=_BODY_INFO + header)
    return MAGIC + _u32(len(header)) + header + _u32(len(sealed_key)) + sealed_key


def _u32(number: int) -> bytes:
    return number.to_bytes(_LENGTH_BYTES, "big")


def _check_header_length(length: int) -> None:
    if length == 0:
        raise MalformedMessage("a sealed message has an empty header: say in it what the message is bound to")
    if length > MAX_HEADER_BYTES:
        raise TooLarge(f"a sealed message's header has {length} bytes, at most {MAX_HEADER_BYTES} are allowed")


class SealedReader:
    """Opens what ``seal_message`` made, from pieces of any size.

    ``accept`` is called once with the header's bytes, before the private key is used: it raises to refuse the message.
    Nothing authenticates the header until ``salt`` is set (the key part opened under it), and nobody is authenticated
    as its sender at all: that is the request signature's part (docs/protocol.md 3).

    Raises: MalformedMessage if it is no sealed message of this version, TooLarge on a header above
            ``MAX_HEADER_BYTES``, BrokenSeal on anything truncated, altered or sealed to another key, and whatever
            ``accept`` raises. After an error the reader refuses further use.
    """

    def __init__(self, key: SealingKey, accept: Callable[[bytes], None] | None = None) -> None:
        self._key = key
        self._accept = accept
        self._needed = _PREFIX_BYTES
        self._held = bytearray()
        self._head = b""
        self._header = b""
        self._secret: bytes | None = None
        self._body: BodyReader | None = None
        self._usable = True

    @property
    def header(self) -> bytes | None:
        """The public header, as soon as it has been read."""
        return self._header or None

    @property
    def head(self) -> bytes:
        """Everything before the body, as far as it has been read."""
        return self._head

    @property
    def salt(self) -> bytes | None:
        """The commitment's salt, once the key part is open."""
        return None if self._secret is None else self._secret[CONTENT_KEY_BYTES:]

    @property
    def content_key(self) -> bytes | None:
        """The key of the body, once the key part is open."""
        return None if self._secret is None else self._secret[:CONTENT_KEY_BYTES]

    def feed(self, data: Octets) -> list[bytes]:
        """Take the next bytes; return the plaintext pieces that are ready (see ``BodyReader``)."""
        self._claim()
        view, pieces = octets(data), list[bytes]()
        while self._body is None and len(view):
            taken = min(self._needed - len(self._held), len(view))
            self._held += view[:taken]
            view = view[taken:]
            if len(self._held) == self._needed:
                self._advance()
        if self._body is not None:
            pieces = self._body.feed(view)
        self._usable = True
        return pieces

    def finish(self) -> bytes:
        """Say that nothing more comes; return the last piece of plaintext."""
        self._claim()
        if self._body is None:
            raise BrokenSeal("the sealed message is cut off before its body: send all of it")
        return self._body.finish()

    def _claim(self) -> None:
        if not self._usable:
            raise BrokenSeal("this sealed message has already ended or failed: start again with a new reader")
        self._usable = False

    def _advance(self) -> None:
        part = bytes(self._held)
        self._held.clear()
        self._head += part
        if len(self._head) == _PREFIX_BYTES:
            self._needed = self._header_length(part)
        elif not self._header:
            self._header, self._needed = part, _LENGTH_BYTES + _SEALED_KEY_BYTES
            if self._accept is not None:
                self._accept(part)
        else:
            self._open_key(part)

    def _header_length(self, prefix: bytes) -> int:
        if not prefix.startswith(MAGIC):
            raise MalformedMessage(
                "this is not a sealed message of this version: it must start with the eight bytes 'MOIETY', 0, 1"
            )
        length = int.from_bytes(prefix[len(MAGIC) :], "big")
        _check_header_length(length)
        return length

    def _open_key(self, part: bytes) -> None:
        length = int.from_bytes(part[:_LENGTH_BYTES], "big")
        if length != _SEALED_KEY_BYTES:
            raise BrokenSeal(f"a sealed message's key part says {length} bytes, must be {_SEALED_KEY_BYTES}")
        self._secret = _open_hpke(part[_LENGTH_BYTES:], self._key, _BODY_INFO + self._header)
        self._body = BodyReader(self._secret[:CONTENT_KEY_BYTES])


class KnownBody:
    """The next chunk of what ``encrypt_body`` made of ``content_bytes``; nothing is held back, since the last is known.

    A chunk that does not open leaves everything as it was: the same place can be tried again with other bytes.
    Whoever keeps opened content instead of sealed bytes gets those back from it: one key and one place have one
    encrypted form.

    Shapes: every chunk but the last holds 2^18 bytes, 16 more when sealed
    Raises: MalformedMessage if the key is not 32 bytes; BrokenSeal on a chunk that is altered, elsewhere's, or one too
            many
    """

    def __init__(self, content_key: bytes, content_bytes: int) -> None:
        self._cipher = body_cipher(content_key)
        self._content_bytes = content_bytes
        self._chunks = max(1, -(-content_bytes // CHUNK_BYTES))
        self._done = 0

    @property
    def done(self) -> int:
        return self._done

    @property
    def next_bytes(self) -> int:
        """The content bytes of the next chunk; 0 once all are open."""
        return max(0, min(CHUNK_BYTES, self._content_bytes - self._done * CHUNK_BYTES))

    @property
    def ended(self) -> bool:
        return self._done == self._chunks

    def open_into(self, content: bytearray | memoryview, chunk: Octets) -> None:
        """The next chunk's content. Shapes: ``chunk`` is 16 bytes longer than ``content``, which has ``next_bytes``"""
        view, room = octets(chunk), memoryview(content)
        if self.ended or len(room) != self.next_bytes or len(view) != len(room) + TAG_BYTES:
            raise BrokenSeal(f"chunk {self._done} of the sealed body is longer or shorter than it must be")
        try:
            self._cipher.decrypt_into(self._nonce(), view, None, room)
        except InvalidTag:
            raise BrokenSeal(
                f"chunk {self._done} of the sealed body does not open: it was altered, or belongs elsewhere"
            ) from None
        self._done += 1

    def sealed_again(self, content: Octets) -> bytes:
        """The sealed form of the next chunk, whose content was opened before; it counts as open."""
        view = octets(content)
        if self.ended or len(view) != self.next_bytes:
            raise BrokenSeal(f"chunk {self._done} of the body is longer or shorter than it must be")
        sealed = self._cipher.encrypt(self._nonce(), view, None)
        self._done += 1
        return sealed

    def _nonce(self) -> bytes:
        return chunk_nonce(self._done, self._done == self._chunks - 1)


Reader: TypeAlias = Callable[[int, int], Octets]
"""Bytes ``offset`` to ``offset + size`` of what is stored: fewer only where it ends."""


class BodyRange:
    """Reads content of ``content_bytes`` bytes, of which ``read`` gives the encrypted form.

    Raises: MalformedMessage if the key is not 32 bytes
    """

    def __init__(self, content_key: bytes, content_bytes: int, read: Reader) -> None:
        self._cipher = body_cipher(content_key)
        self._content_bytes = content_bytes
        self._last = max(0, -(-content_bytes // CHUNK_BYTES) - 1)
        self._read = read

    def bytes_at(self, start: int, stop: int) -> memoryview:
        """Content from ``start`` to ``stop``.

        Raises: BrokenSeal, when what is stored was altered or is cut off; ProtocolViolation, for a part that is not
                there
        """
        if not 0 <= start <= stop <= self._content_bytes:
            raise ProtocolViolation(f"content of {self._content_bytes} bytes has no bytes {start} to {stop}")
        first = min(start // CHUNK_BYTES, self._last)
        end = max(first + 1, -(-stop // CHUNK_BYTES))
        held = memoryview(self._read(first * _SEALED_CHUNK, (end - first) * _SEALED_CHUNK))
        opened = []
        for place in range(first, end):
            chunk = held[(place - first) * _SEALED_CHUNK :][:_SEALED_CHUNK]
            if len(chunk) < TAG_BYTES:
                raise BrokenSeal(f"the stored body ends before its chunk {place}; check the disk or the storage")
            opened.append(open_chunk(self._cipher, place, place == self._last, chunk))
        found = memoryview(opened[0] if len(opened) == 1 else b"".join(opened))
        wanted = found[start - first * CHUNK_BYTES : stop - first * CHUNK_BYTES]
        if len(wanted) != stop - start:
            raise BrokenSeal(f"the stored body ends before byte {stop} of its content; check the disk or the storage")
        return wanted
