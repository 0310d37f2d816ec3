"""Control messages: canonical bytes, digests, signatures over them (docs/protocol.md 3).

Canonical bytes are JSON with sorted keys and no spaces. A digest is SHA-256 over the message's kind and
those bytes, so that two kinds can never be mistaken for one another. Vectors never travel in these messages.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Annotated, Any, ClassVar, Final, Generic, Literal, Self, TypeVar

from pydantic import Field, ValidationError

from protocol.errors import MalformedMessage
from protocol.parameters import PROTOCOL_VERSION, Record, require_version

PartyName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
StudyName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Secret32 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)]
KeyId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
SignatureHex = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
MOST_ROUNDS: Final = 10**6
RoundNumber = Annotated[int, Field(ge=1, le=MOST_ROUNDS)]
Attempt = Annotated[int, Field(ge=1, le=1000)]
Version = Literal["moiety/2"]

MAX_CONTROL_BYTES: Final = 4 * 2**20
_VERSION_FIELD: Final = "version"
_LENGTH: Final = struct.Struct(">I")


def omitted(default: Any = None) -> Any:  # noqa: ANN401  # stands for a field of any type, as Field() does
    """A field that bytes leave out where it has its default: messages from before there was one stay as they are."""
    return Field(default=default, exclude_if=lambda value: bool(value == default))


class Message(Record):
    """Base of every control message: immutable, strict, closed."""

    __slots__ = ("_kept_canonical", "_kept_digest")  # no fields: not compared, not copied with another content
    KIND: ClassVar[str]

    def canonical(self) -> bytes:
        """The bytes that are sent, hashed and signed."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    def canonical_kept(self) -> bytes:
        """The same, made once, for a message that is sent to many."""
        try:
            made: bytes = object.__getattribute__(self, "_kept_canonical")
        except AttributeError:
            made = self.canonical()
            object.__setattr__(self, "_kept_canonical", made)
        return made

    def digest(self) -> str:
        """Hex SHA-256 over the kind and the canonical bytes, taken once: a message does not change."""
        try:
            return str(object.__getattribute__(self, "_kept_digest"))
        except AttributeError:
            taken = hashlib.sha256(f"{PROTOCOL_VERSION} {self.KIND}\x00".encode() + self.canonical()).hexdigest()
            object.__setattr__(self, "_kept_digest", taken)
            return taken

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Parse received bytes; MalformedMessage names the first field that is wrong, OtherVersion the version."""
        if len(data) > MAX_CONTROL_BYTES:
            raise MalformedMessage(f"{cls.KIND}: {len(data)} bytes, at most {MAX_CONTROL_BYTES} are allowed")
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            for wrong in error.errors(include_url=False):
                if wrong["loc"] and wrong["loc"][-1] == _VERSION_FIELD:
                    require_version(f"this {cls.KIND}", wrong["input"])
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "body"
            raise MalformedMessage(f"{cls.KIND}: {where}: {first['msg']}") from None


class Signature(Message):
    """An Ed25519 signature by a named party over a message's domain and canonical bytes."""

    KIND: ClassVar[str] = "signature"
    signer: PartyName
    value: SignatureHex


M = TypeVar("M", bound=Message)
_SIGNED_KINDS: Final[dict[object, object]] = {}


class Signed(Message, Generic[M]):
    """A message with the signatures collected so far; ``protocol.messages.control`` adds and checks them."""

    KIND: ClassVar[str] = "signed"
    message: M
    signatures: tuple[Signature, ...] = ()

    def __class_getitem__(cls, kind: Any) -> Any:  # noqa: ANN401  (as pydantic has it)
        """The class for one kind of message, made once: pydantic forgets it, and a schema, when nobody holds it."""
        if (cls, kind) not in _SIGNED_KINDS:
            _SIGNED_KINDS[cls, kind] = super().__class_getitem__(kind)
        return _SIGNED_KINDS[cls, kind]

    def signature_of(self, signer: str) -> Signature | None:
        return next((s for s in self.signatures if s.signer == signer), None)


def pack_frame(message: Message, body: bytes = b"") -> bytes:
    """One message followed by raw bytes."""
    head = message.canonical()
    return _LENGTH.pack(len(head)) + head + body


def unpack_frame(data: bytes, kind: type[M]) -> tuple[M, memoryview]:
    """The message and the bytes behind it; MalformedMessage when the frame is short or the message wrong."""
    view = memoryview(data)
    if len(view) < _LENGTH.size:
        raise MalformedMessage(f"{kind.KIND}: a frame of {len(view)} bytes is shorter than its length field")
    (size,) = _LENGTH.unpack(view[: _LENGTH.size])
    if size > MAX_CONTROL_BYTES or len(view) < _LENGTH.size + size:
        raise MalformedMessage(f"{kind.KIND}: the frame says {size} header bytes, {len(view) - _LENGTH.size} follow")
    return kind.parse(bytes(view[_LENGTH.size : _LENGTH.size + size])), view[_LENGTH.size + size :]
