"""Key files and rosters as TOML text: written, read back and checked here; reading and writing files is the caller's.

A secret key file belongs to one party and never leaves its machine. A roster names every party with its public
keys and carries the signatures of both operators and the requester (docs/protocol.md 3).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from protocol.channel.keys import SealingKey, SigningKey, key_id_of
from protocol.configuration import parse_toml, validated
from protocol.errors import ConfigurationError, MoietyError
from protocol.messages.control import Party, PartyName, Role, Roster, Signature, Signed

_KEY_FILE_NOTICE: Final = "# Secret: belongs to this party alone. Never copy it to another machine.\n"


@dataclass(frozen=True)
class PartyKeys:
    """A party's two secret keys."""

    name: str
    role: Role
    signing: SigningKey = field(repr=False)
    sealing: SealingKey = field(repr=False)

    @property
    def key_id(self) -> str:
        return key_id_of(self.signing.public.to_bytes())

    def party(self, *, url: str | None = None, samples: int | None = None) -> Party:
        """The public half, as the roster holds it."""
        return Party(
            name=self.name,
            role=self.role,
            signing_key=self.signing.public.to_bytes().hex(),
            sealing_key=self.sealing.public.to_bytes().hex(),
            url=url,
            samples=samples,
        )


class _SecretFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
    name: PartyName
    role: Role
    signing_key: str
    sealing_key: str


def dump_party_keys(keys: PartyKeys) -> str:
    return _KEY_FILE_NOTICE + table_text(
        {
            "name": keys.name,
            "role": keys.role.value,
            "signing_key": keys.signing.to_bytes().hex(),
            "sealing_key": keys.sealing.to_bytes().hex(),
        }
    )


def parse_party_keys(text: str, source: str) -> PartyKeys:
    """A secret key file; ConfigurationError never quotes its content."""
    table = parse_toml(text, source)
    missing = {"name", "role", "signing_key", "sealing_key"} - table.keys()
    if missing:
        raise ConfigurationError(f"{source}: not a secret key file: {', '.join(sorted(missing))} missing")
    try:
        secret = _SecretFile.model_validate(table)
        return PartyKeys(
            name=secret.name,
            role=secret.role,
            signing=SigningKey.from_bytes(bytes.fromhex(secret.signing_key)),
            sealing=SealingKey.from_bytes(bytes.fromhex(secret.sealing_key)),
        )
    except (ValueError, MoietyError):
        raise ConfigurationError(
            f"{source}: not a valid secret key file; make one with 'moiety roster new-keys'"
        ) from None


def dump_party(party: Party) -> str:
    return table_text({k: v for k, v in party.model_dump(mode="json").items() if v is not None})


def parse_party(text: str, source: str) -> Party:
    return validated(PartyTable, parse_toml(text, source), source).strict()


def dump_roster(signed: Signed[Roster]) -> str:
    """The roster's text with the signatures collected so far."""
    roster = signed.message
    head = table_text({"federation": roster.federation, "requester": roster.requester})
    parts = [head, "[operator_a]\n" + dump_party(roster.operator_a), "[operator_b]\n" + dump_party(roster.operator_b)]
    parts += ["[[sites]]\n" + dump_party(site) for site in roster.sites]
    parts += ["[[signatures]]\n" + table_text(s.model_dump(mode="json")) for s in signed.signatures]
    return "\n".join(parts)


def parse_roster(text: str, source: str) -> Signed[Roster]:
    """A roster with its signatures; ``authentic.require_roster`` says whether they suffice."""
    loaded = validated(RosterTable, parse_toml(text, source), source)
    return loaded.signed()


class PartyTable(BaseModel):
    """A party as a file has it, before its fields are checked."""

    model_config = ConfigDict(extra="forbid")
    name: str
    role: Role
    signing_key: str
    sealing_key: str
    url: str | None = None
    samples: int | None = None

    def strict(self) -> Party:
        """Raises: MalformedMessage"""
        return Party.parse(self.model_dump_json(include=set(Party.model_fields)).encode())


class RosterTable(BaseModel):
    """A first roster as a file has it, before its fields are checked."""

    model_config = ConfigDict(extra="forbid")
    federation: str
    requester: str
    operator_a: PartyTable
    operator_b: PartyTable
    sites: tuple[PartyTable, ...]
    signatures: tuple[Signature, ...] = ()

    def signed(self) -> Signed[Roster]:
        """Raises: MalformedMessage"""
        table = self.model_dump(include=set(Roster.model_fields))
        return Signed[Roster](message=Roster.parse(json.dumps(table).encode()), signatures=self.signatures)


def table_text(values: dict[str, Any]) -> str:
    """Flat TOML: JSON of printable texts, integers and lists of them is TOML as it is."""
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
