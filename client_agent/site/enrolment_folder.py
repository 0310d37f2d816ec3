"""The folder that joining makes: keys, cards, CA, settings and compose file; none of it is overwritten."""

from __future__ import annotations

import json
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from host.compose import HARDENED, LOGGED
from host.files import private_folder, read_secret
from host.output_files import write_new
from host.randomness import new_party_keys
from host.settings import read_text
from protocol.errors import ConfigurationError
from protocol.messages.control import Party, Role
from protocol.roster.enrolment import OperatorCard, dump_card, parse_card
from protocol.roster.keyfile import PartyKeys, dump_party, dump_party_keys, parse_party, parse_party_keys
from protocol.sharing import Side

SETTINGS: Final = "settings.toml"
ROSTER: Final = "roster.toml"
_KEYS: Final = "keys.toml"
_PUBLIC: Final = "site.public.toml"
_CA: Final = "ca.pem"
_BUNDLES: Final = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/pki/tls/certs/ca-bundle.crt"))
"""Bundles of distributions whose OpenSSL names a folder alone."""
_SECRET_MODE: Final = 0o600
_MODE: Final = 0o644


@dataclass(frozen=True)
class Joined:
    """The folder's contents; ``cards`` are those that the invitations named, side a first."""

    folder: Path
    keys: PartyKeys
    party: Party
    cards: tuple[OperatorCard, OperatorCard]

    @property
    def roster(self) -> Path:
        return self.folder / ROSTER


@dataclass(frozen=True)
class Wanted:
    """The data manager's choices; ``ca`` holds CAs for operators whose certificates are public ones, ``state`` is the
    agent's state folder of before, for a site that renews its keys.
    """

    samples: int
    data: Path
    ca: Path | None = None
    proxy: str | None = None
    proxy_credentials: Path | None = None
    state: Path | None = None


def card_file(side: Side) -> str:
    return f"operator-{side.value}.card.toml"


def open_folder(folder: Path) -> Joined:
    """Raises: ConfigurationError, when the folder is not one that 'moiety site join' made"""
    if not any((folder / name).exists() for name in (_PUBLIC, card_file(Side.A), card_file(Side.B))):
        raise ConfigurationError(
            f"{folder} was not made by 'moiety site join', as this command needs it: is the folder right? A site "
            "whose first roster was made by hand takes changes from the servers while its agent runs"
        )
    keys = parse_party_keys(read_secret(folder / _KEYS), str(folder / _KEYS))
    party = parse_party(read_text(folder / _PUBLIC), str(folder / _PUBLIC))
    a, b = (parse_card(read_text(folder / card_file(side)), str(folder / card_file(side))) for side in (Side.A, Side.B))
    if keys.party(samples=party.samples) != party:
        raise ConfigurationError(f"{folder / _PUBLIC} is not the public card of {folder / _KEYS}: restore the folder")
    return Joined(folder, keys, party, (a, b))


def is_joined(folder: Path) -> bool:
    return (folder / _KEYS).exists() and (folder / card_file(Side.B)).exists()


def make_folder(folder: Path, site: str, wanted: Wanted, cards: tuple[OperatorCard, OperatorCard]) -> Joined:
    """Keys are made here and leave this folder never. Raises: ConfigurationError, StorageFull; then nothing is left"""
    brought = {Path(os.path.realpath(path)) for path in (wanted.ca, wanted.proxy_credentials) if path is not None}
    if folder.is_dir() and {Path(os.path.realpath(path)) for path in folder.iterdir()} - brought:
        raise ConfigurationError(f"option --out: {folder} holds files already; nothing was changed: name another")
    keys = new_party_keys(site, Role.SITE)
    party = keys.party(samples=wanted.samples)
    files = [
        (folder / _KEYS, dump_party_keys(keys), _SECRET_MODE),
        (folder / _PUBLIC, dump_party(party), _MODE),
        (folder / _CA, _authorities(cards, wanted.ca), _MODE),
        (folder / SETTINGS, _settings_text(site, wanted, folder), _MODE),
        (folder / COMPOSE, compose_text(site, Path(os.path.realpath(wanted.data))), _MODE),
        *((folder / card_file(card.side), dump_card(card), _MODE) for card in cards),
    ]
    private_folder(folder)
    write_new(*files)
    return Joined(folder, keys, party, cards)


def _authorities(cards: tuple[OperatorCard, OperatorCard], told: Path | None) -> str:
    """PEM of every CA that the agent shall trust."""
    own = [card.ca for card in cards if card.ca is not None]
    if told is not None:
        own.append(read_text(told))
    elif len(own) < len(cards):
        own.append(read_text(_public_authorities()))
    return "\n".join(own)


def _public_authorities() -> Path:
    told = ssl.get_default_verify_paths().cafile
    found = [path for path in (*([Path(told)] if told else []), *_BUNDLES) if path.is_file()]
    if not found:
        raise ConfigurationError(
            "an operator's certificate is by a public CA, and this machine has no file of these: name one with --ca"
        )
    return found[0]


def _settings_text(site: str, wanted: Wanted, folder: Path) -> str:
    values = {
        "site": site,
        "roster": ROSTER,
        "keys": _KEYS,
        "data": os.path.realpath(wanted.data),
        "state_dir": "state" if wanted.state is None else os.path.realpath(wanted.state),
        "ca": _CA,
        **({"proxy": wanted.proxy} if wanted.proxy else {}),
        **({"proxy_credentials": _named(wanted.proxy_credentials, folder)} if wanted.proxy_credentials else {}),
    }
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    return f"# Every key is explained in docs/joining.md. The roster comes by 'moiety site status'.\n{lines}"


def _named(path: Path, folder: Path) -> str:
    """As the settings name it: one in this folder by its name alone, which holds wherever the folder is mounted."""
    return (
        path.name if Path(os.path.realpath(path)).parent == Path(os.path.realpath(folder)) else os.path.realpath(path)
    )


COMPOSE: Final = "compose.yaml"


def compose_text(site: str, data: Path) -> str:
    """``data``: the data folder on the machine that holds the joined folder; the containers see it as /data."""
    project = f"moiety-{site}"
    mount = json.dumps(f"${{MOIETY_DATA:-{data}}}:/data:ro")
    return f"""# The agent of {site}. Start, once the roster is here: docker compose up -d (in this folder)
# Every other command: docker compose run --rm moiety ... --config /etc/moiety/settings.toml
# The site's page, for a browser on this machine: docker compose run --rm page (docs/joining.md says how to build it)
# All files here belong to user 10001, secrets to nobody else: chown -R 10001 . && chmod 600 *key* *credentials*
# The project's name keeps it apart from other compose files on the same machine. For a GPU: an image with CUDA, and
# your engine's GPU option here.
name: {project}
services:
  agent:
    image: ${{MOIETY_AGENT_IMAGE:-moiety-agent:local}}
    restart: unless-stopped
{HARDENED}\
    mem_limit: ${{MOIETY_MEMORY:-8g}}
    cpus: "${{MOIETY_CPUS:-2}}"
    pids_limit: 256
    stop_grace_period: 30s
    environment: &environment
      MOIETY_AGENT_DATA: /data
      MOIETY_AGENT_STATE_DIR: /var/lib/moiety
    volumes:
      - .:/etc/moiety:ro
      - {mount}
      - state:/var/lib/moiety
    networks: [outside]
{LOGGED}\
  moiety: # for commands: it alone may write into this folder, the roster for instance
    image: ${{MOIETY_AGENT_IMAGE:-moiety-agent:local}}
    profiles: [commands]
{HARDENED}\
    mem_limit: ${{MOIETY_MEMORY:-8g}}
    pids_limit: 256
    environment: *environment
    volumes:
      - .:/etc/moiety
      - {mount}
      - state:/var/lib/moiety
    networks: [outside]
  page: # on this machine's own loopback, where the browser is; it calls nobody
    image: ${{MOIETY_PAGE_IMAGE:-moiety-agent-page:local}}
    profiles: [commands]
    command: [agent, page, --config, /etc/moiety/settings.toml]
    network_mode: host
{HARDENED}\
    mem_limit: 1g
    pids_limit: 256
    environment: *environment
    volumes:
      - .:/etc/moiety:ro
      - {mount}
      - state:/var/lib/moiety

networks:
  outside:

volumes:
  state:
    name: {project}
"""
