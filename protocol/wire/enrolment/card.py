"""An operator's public card: what the other operator and the sites take from it, all under one fingerprint."""

from __future__ import annotations

import json
from typing import Annotated, ClassVar, Final

from pydantic import Field, model_validator

from protocol.configuration import parse_toml
from protocol.errors import ConfigurationError, MalformedMessage
from protocol.sharing import Side
from protocol.wire.message import Message, StudyName
from protocol.wire.roster import Party, Role

_PEM: Final = r"^(-----BEGIN CERTIFICATE-----\n([A-Za-z0-9+/=]{1,76}\n)+-----END CERTIFICATE-----\n)+$"
MOST_CA_CHARACTERS: Final = 8192


class OperatorCard(Message):
    """``party`` runs side ``side`` of the federation; ``ca`` is the CA of its TLS certificate, PEM, where that is its
    own and not a public one."""

    KIND: ClassVar[str] = "operator_card"
    federation: StudyName
    side: Side
    party: Party
    ca: Annotated[str, Field(pattern=_PEM, max_length=MOST_CA_CHARACTERS)] | None = None

    @model_validator(mode="after")
    def _of_an_operator(self) -> OperatorCard:
        if self.party.role is not Role.OPERATOR or self.party.url is None:
            raise ValueError("a card is an operator's, with the https address of its server")
        return self

    @property
    def url(self) -> str:
        """The server's address."""
        return self.party.url or ""


def dump_card(card: OperatorCard) -> str:
    """The card's file, TOML."""
    table = card.model_dump(mode="json", exclude_none=True)
    party = table.pop("party")
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in table.items()]
    return "".join([*lines, "\n[party]\n", *(f"{key} = {json.dumps(value)}\n" for key, value in party.items())])


def parse_card(text: str, source: str) -> OperatorCard:
    """Raises: ConfigurationError"""
    table = parse_toml(text, source)
    try:
        return OperatorCard.parse(json.dumps(table, default=str).encode())
    except MalformedMessage as wrong:
        raise ConfigurationError(
            f"{source}: not an operator's public card ({wrong.detail}): have the file NAME.card.toml sent again"
        ) from None
