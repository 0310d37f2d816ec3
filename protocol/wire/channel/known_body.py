"""An encrypted body whose length is known, opened chunk by chunk, and taken up again behind chunks opened before."""

from __future__ import annotations

from cryptography.exceptions import InvalidTag

from protocol.errors import BrokenSeal
from protocol.wire.channel.sealing import CHUNK_BYTES, TAG_BYTES, Octets, body_cipher, chunk_nonce, octets


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
        """The number of open chunks."""
        return self._done

    @property
    def next_bytes(self) -> int:
        """The content bytes of the next chunk; 0 once all are open."""
        return max(0, min(CHUNK_BYTES, self._content_bytes - self._done * CHUNK_BYTES))

    @property
    def ended(self) -> bool:
        """True if the last chunk is open."""
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
