"""Signed requests that say too little, or are signed by somebody else (docs/protocol.md 3; RFC 9421)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace

from protocol.wire.channel.signing import TAG, DigestField, digest_value
from protocol.wire.keyfile import PartyKeys
from protocol.wire.keys import SigningKey, generate_signing_key

Headers = list[tuple[str, str]]


def impostor(keys: PartyKeys, rand: bytes) -> PartyKeys:
    """Somebody else's name with a signing key of one's own."""
    return replace(keys, signing=generate_signing_key(rand))


def nobody(keys: PartyKeys, rand: bytes) -> PartyKeys:
    """A sound key that no roster holds."""
    return replace(keys, name="nobody", signing=generate_signing_key(rand))


def signature_bit_flipped(headers: Sequence[tuple[str, str]]) -> Headers:
    """The same request with one bit of its signature turned over."""
    altered: Headers = []
    for name, value in headers:
        if name.lower() != "signature":
            altered.append((name, value))
            continue
        label, _, encoded = value.partition("=:")
        raw = bytearray(base64.b64decode(encoded.rstrip(":")))
        raw[0] ^= 1
        altered.append((name, f"{label}=:{base64.b64encode(raw).decode()}:"))
    return altered


def signed_over_less(
    url: str,
    envelope_digest: bytes,
    key: SigningKey,
    key_id: str,
    *,
    created: int,
    nonce: str,
    without: str = "",
) -> Headers:
    """A valid Ed25519 signature over an envelope, with one component or parameter left out of what it covers.

    With ``without`` empty it is the signature that servers accept, which shows that nothing else is wrong with it.
    """
    field = DigestField.SEALED_HEAD
    digest = digest_value(field, envelope_digest)
    values = {"@method": "POST", "@target-uri": url, field.value: digest}
    stated = {
        "created": str(created),
        "keyid": f'"{key_id}"',
        "alg": '"ed25519"',
        "nonce": f'"{nonce}"',
        "tag": f'"{TAG}"',
    }
    covered = [name for name in values if name != without]
    parameters = "(" + " ".join(f'"{name}"' for name in covered) + ")"
    parameters += "".join(f";{name}={value}" for name, value in stated.items() if name != without)
    base = "".join(f'"{name}": {values[name]}\n' for name in covered) + f'"@signature-params": {parameters}'
    signature = base64.b64encode(key.sign(base.encode())).decode()
    return [
        (field.title(), digest),
        ("Signature-Input", f"moiety={parameters}"),
        ("Signature", f"moiety=:{signature}:"),
    ]
