"""The other operator's card, compared over the phone and kept: its address, its keys, the CA of its certificate."""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from host.files import private_folder, read_secret, write_durably
from host.network import require_apart, why_unreachable
from host.settings import read_text
from protocol.errors import ConfigurationError
from protocol.messages.paths import CARD
from protocol.roster.enrolment import OperatorCard, dump_card, parse_card, require_fingerprint
from protocol.roster.keyfile import PartyKeys, parse_party_keys
from servers.settings import ServerSettings

PEER_CARD: Final = "peer.card.toml"
PEER_CA: Final = "peer-ca.pem"
_MOST_CARD_BYTES: Final = 2**15
_TIMEOUT_S: Final = 10.0


def own_card(settings: ServerSettings) -> tuple[OperatorCard, PartyKeys]:
    """This server's card and the keys that belong to it. Raises: ConfigurationError"""
    if settings.card is None:
        raise ConfigurationError(
            "key 'card' is missing: enrolment is for a server whose folder 'moiety server init' made; with a first "
            "roster that was made by hand there is nothing to enrol (docs/operating.md)"
        )
    card = parse_card(read_text(settings.card), str(settings.card))
    keys = parse_party_keys(read_secret(settings.keys), str(settings.keys))
    if keys.party(url=card.url) != card.party or card.side is not settings.side or card.url != settings.public_url:
        raise ConfigurationError(
            f"keys 'card', 'keys', 'side' and 'public_url': {settings.card} is the card of {card.party.name!r}, side "
            f"{card.side.value!r}, at {card.url}; the others say otherwise: take the files of one 'moiety server init'"
        )
    return card, keys


def read_card(where: str) -> OperatorCard:
    """A card from a file, or from a server that shows its own. Whose it is the fingerprint says: a certificate by a
    CA that this machine cannot know yet is no reason to refuse.

    Raises: ConfigurationError
    """
    if where.startswith("https://"):
        return parse_card(_fetched(where), where)
    return parse_card(read_text(Path(where)), where)


def _fetched(url: str) -> str:
    parts = urlsplit(url)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_S, context=context)
    try:
        connection.request("GET", CARD, headers={"Accept-Encoding": "identity"})
        answer = connection.getresponse()
        body = answer.read(_MOST_CARD_BYTES + 1)
    except (OSError, http.client.HTTPException) as error:
        reason = why_unreachable(error) if isinstance(error, OSError) else str(error)
        raise ConfigurationError(f"{url}: {reason}; or have the card sent as a file") from None
    finally:
        connection.close()
    if answer.status != http.client.OK or len(body) > _MOST_CARD_BYTES:
        raise ConfigurationError(f"{url} shows no card (status {answer.status}): have it sent as a file")
    return body.decode("utf-8", "replace")


def pair(settings: ServerSettings, theirs: OperatorCard, fingerprint: str) -> OperatorCard:
    """Keep the other operator's card. Raises: ConfigurationError; then nothing was kept"""
    own, _ = own_card(settings)
    require_fingerprint(fingerprint, theirs, theirs.party.name)
    require_other(own, theirs)
    if settings.peer_url is not None and settings.peer_url != theirs.url:
        raise ConfigurationError(
            f"key 'peer_url': found {settings.peer_url!r}, and the card of {theirs.party.name!r} says {theirs.url!r}: "
            "take the key out, or ask which address is right"
        )
    known = paired(settings)
    if known is not None and known != theirs:
        raise ConfigurationError(
            f"this server is paired with {known.party.name!r} under another card; if that one's keys were never used, "
            f"delete {settings.data_dir / PEER_CARD} and pair again"
        )
    private_folder(settings.data_dir)
    if theirs.ca is not None:
        write_durably(settings.data_dir / PEER_CA, theirs.ca.encode())
    write_durably(settings.data_dir / PEER_CARD, dump_card(theirs).encode())
    return theirs


def require_other(own: OperatorCard, theirs: OperatorCard) -> None:
    """Two operators of one federation. Raises: ConfigurationError"""
    if own.federation != theirs.federation:
        raise ConfigurationError(
            f"the card of {theirs.party.name!r} is for federation {theirs.federation!r}, this server's is "
            f"{own.federation!r}: both operators run 'moiety server init' with the same --federation"
        )
    if own.side is theirs.side:
        raise ConfigurationError(
            f"both cards are of side {own.side.value!r}: one operator runs 'moiety server init --side a', the other b"
        )
    mine, other = own.party, theirs.party
    if mine.name == other.name or {mine.signing_key, mine.sealing_key} & {other.signing_key, other.sealing_key}:
        raise ConfigurationError(
            f"both cards have the name {mine.name!r} or the same keys: two operators have a name and keys each; is "
            "this your own card?"
        )
    require_apart((own.url, theirs.url))


def paired(settings: ServerSettings) -> OperatorCard | None:
    """The other operator's card, once it was compared."""
    path = settings.data_dir / PEER_CARD
    return parse_card(read_text(path), str(path)) if path.exists() else None


def completed(settings: ServerSettings) -> ServerSettings:
    """With what the paired card says, where the settings do not say it themselves."""
    theirs = None if settings.card is None else paired(settings)
    if theirs is None:
        return settings
    ca = settings.data_dir / PEER_CA if theirs.ca is not None else None
    told = {"peer_url": settings.peer_url or theirs.url, "peer_ca": settings.peer_ca or ca}
    return settings.model_copy(update=told)
