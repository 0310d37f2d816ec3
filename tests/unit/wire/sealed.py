"""A sealed message of three chunks, and how tests read and alter it."""

from __future__ import annotations

import numpy as np

from protocol.channel import sealing
from protocol.channel.keys import SealingKey, generate_sealing_key
from protocol.channel.sealing import CHUNK_BYTES, TAG_BYTES, BodyReader, SealedReader

KEY = generate_sealing_key(bytes(range(96)))
OTHER = generate_sealing_key(bytes(range(1, 97)))
CONTENT_KEY = b"k" * 32
SALT = b"s" * 32
HEADER = b'{"round":3,"site":"north"}'
SEALED_CHUNK = CHUNK_BYTES + TAG_BYTES
KEY_PART = len(sealing.MAGIC) + 4 + len(HEADER)
BODY_PART = KEY_PART + 4 + 1200
EDGES = [0, 1, 15, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES - 7]


def content(length: int) -> bytes:
    return np.random.default_rng(length).bytes(length)


def flipped(data: bytes, place: int, bit: int = 0) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1 << bit
    return bytes(changed)


def seal(plaintext: bytes, header: bytes = HEADER, content_key: bytes = CONTENT_KEY) -> bytes:
    return sealing.seal_message(header, [plaintext], KEY.public, content_key, SALT).whole()


def read(sealed: bytes, key: SealingKey = KEY) -> bytes:
    reader = SealedReader(key)
    return b"".join(reader.feed(sealed)) + reader.finish()


def read_body(body: bytes, content_key: bytes = CONTENT_KEY) -> bytes:
    reader = BodyReader(content_key)
    return b"".join(reader.feed(body)) + reader.finish()


THREE = content(2 * CHUNK_BYTES + 1000)
SEALED = seal(THREE)
BODY = SEALED[BODY_PART:]
