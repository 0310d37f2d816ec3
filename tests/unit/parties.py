"""A small federation of named parties with real keys, the same in every test run."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from protocol.channel.keys import generate_sealing_key, generate_signing_key
from protocol.messages import control
from protocol.messages.control import (
    Announcement,
    LayerShape,
    ModelSpec,
    Role,
    Roster,
    RuleName,
    RuleSpec,
    Signed,
    Study,
)
from protocol.parameters import StudyParameters
from protocol.roster.keyfile import PartyKeys
from tests.kit import round_messages
from tests.kit.studies import study_of

SITES = ("hospital-0", "hospital-1", "hospital-2", "hospital-3")
REQUESTER = SITES[0]


def party_keys(name: str, role: Role = Role.SITE, seed: str = "") -> PartyKeys:
    """Keys that follow from the name and the seed alone."""
    stream = hashlib.shake_256(f"test keys of {name}{seed}".encode()).digest(128)
    return PartyKeys(
        name=name, role=role, signing=generate_signing_key(stream[:32]), sealing=generate_sealing_key(stream[32:])
    )


@dataclass(frozen=True)
class Parties:
    roster: Signed[Roster]
    keys: dict[str, PartyKeys]


def parties(sites: tuple[str, ...] = SITES) -> Parties:
    """Two operators and ``sites``; the first site is the requester; the roster carries all three signatures."""
    keys = {name: party_keys(name, Role.OPERATOR) for name in ("operator-a", "operator-b")}
    keys |= {name: party_keys(name) for name in sites}
    roster = Roster(
        federation="test",
        operator_a=keys["operator-a"].party(url="https://127.0.0.1:8441"),
        operator_b=keys["operator-b"].party(url="https://127.0.0.1:8442"),
        requester=sites[0],
        sites=tuple(keys[name].party(samples=100) for name in sites),
    )
    signed: Signed[Roster] = control.sign(roster, "operator-a", keys["operator-a"].signing)
    for name in ("operator-b", sites[0]):
        signed = control.countersign(signed, name, keys[name].signing)
    return Parties(roster=signed, keys=keys)


def study(roster_digest: str, dimension: int = 6, **changes: Any) -> Study:
    """A linear model of ``dimension`` parameters under Weight Erosion, unless said otherwise."""
    layers = (LayerShape(name="weight", shape=(dimension,)),)
    fields: dict[str, Any] = {
        "name": "test-study",
        "roster_digest": roster_digest,
        "parameters": StudyParameters(dimension=dimension, clip_norm=1.0, least_contributors=3),
        "rule": RuleSpec(name=RuleName.WEIGHT_EROSION),
        "model": ModelSpec(kind="linear", inputs=(dimension // 2,), layers=layers),
    }
    return study_of(**(fields | changes))


def announcement(study_digest: str, number: int = 1, **changes: Any) -> Announcement:
    fields = {"study_digest": study_digest, "round": number, "listed": SITES[1:], "model_version": number - 1}
    return round_messages.announcement(**(fields | changes))
