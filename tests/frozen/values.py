"""Values of the right form for examples of messages."""

from __future__ import annotations

import hashlib
from typing import Any

Fields = dict[str, Any]


def digest(of: str) -> str:
    """64 hex digits that follow from a text."""
    return hashlib.sha256(of.encode()).hexdigest()


def key_id(of: str) -> str:
    return digest(of)[:32]


def signature(signer: str) -> Fields:
    return {"signer": signer, "value": digest(f"{signer} 1") + digest(f"{signer} 2")}


def signed(message: Fields, *signers: str) -> Fields:
    return {"message": message, "signatures": [signature(signer) for signer in signers]}


def party(name: str, role: str, **more: Any) -> Fields:
    """Hex of the lengths that keys have; no key that anybody holds."""
    sealing = hashlib.shake_256(f"sealing key of {name}".encode()).hexdigest(1216)
    fields = {"name": name, "role": role, "signing_key": digest(f"signing key of {name}"), "sealing_key": sealing}
    return {"url": None, "samples": None, **fields, **more}
