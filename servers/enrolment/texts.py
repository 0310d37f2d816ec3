"""Texts that `moiety server init` writes: the settings, the compose file, and what to do next."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from host.compose import HARDENED, LOGGED
from protocol.sharing import Side

KEYS: Final = "keys.toml"
SETTINGS: Final = "settings.toml"
COMPOSE: Final = "compose.yaml"
CHAIN: Final = "tls-certificate.pem"
TLS_KEY: Final = "tls-key.pem"
CA: Final = "ca.pem"
CA_KEY: Final = "ca-key.pem"
CONTAINER_PORT: Final = 8443


@dataclass(frozen=True)
class Told:
    """The settings of a new server; ``certificate`` and ``tls_key`` as the file names them."""

    side: Side
    operator: str
    url: str
    peer_url: str | None
    port: int
    certificate: str
    tls_key: str

    @property
    def card(self) -> str:
        """The public card's file."""
        return f"{self.operator}.card.toml"


def settings_text(told: Told) -> str:
    """A settings file for this folder; in a container the compose file's variables stand in for three of its keys."""
    values = {
        "side": told.side.value,
        "host": "0.0.0.0",  # noqa: S104  # a server is there to be reached
        "port": told.port,
        "public_url": told.url,
        **({"peer_url": told.peer_url} if told.peer_url else {}),
        "card": told.card,
        "keys": KEYS,
        "roster": "data/roster.toml",
        "data_dir": "data",
        "tls_certificate": told.certificate,
        "tls_key": told.tls_key,
    }
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    return (
        "# Every key is explained in docs/operating.md. The roster comes by itself when the federation is founded,\n"
        f"# the other operator's address and CA with 'moiety server pair'.\n{lines}"
    )


def compose_text(told: Told) -> str:
    """The compose file of this folder, with a project name of its own."""
    project = f"moiety-{told.operator}"
    return _service_text(told, project) + _commands_text() + _around_text(project)


def _service_text(told: Told, project: str) -> str:
    return f"""# The server of {told.operator}, side {told.side.value}. Start: docker compose up -d (in this folder)
# All files here belong to user 10001, secrets to nobody else: chown -R 10001 . && chmod 600 *key*
# Every other command: docker compose run --rm moiety server ... --config /etc/moiety/settings.toml
# The project's name keeps it apart from other compose files on the same machine.
name: {project}
services:
  server:
    image: ${{MOIETY_SERVER_IMAGE:-moiety-server:local}}
    restart: unless-stopped
{HARDENED}\
    mem_limit: ${{MOIETY_MEMORY:-2g}}
    cpus: "${{MOIETY_CPUS:-2}}"
    pids_limit: 256
    stop_grace_period: 15s
    ports: ["${{MOIETY_PORT:-{told.port}}}:{CONTAINER_PORT}"]
    environment:
      MOIETY_SERVER_PORT: "{CONTAINER_PORT}"
      MOIETY_SERVER_DATA_DIR: /var/lib/moiety
      MOIETY_SERVER_ROSTER: /var/lib/moiety/roster.toml
      MOIETY_SERVER_OPERATIONS_HOST: 0.0.0.0
      MOIETY_SERVER_OPERATIONS_PORT: "9443"
    volumes:
      - ${{MOIETY_CONFIG:-.}}:/etc/moiety:ro
      - data:/var/lib/moiety
    networks: [outside, operations]
{LOGGED}\
"""


def _commands_text() -> str:
    return f"""\
  moiety: # for commands: it alone may write into this folder, a renewed certificate for instance
    image: ${{MOIETY_SERVER_IMAGE:-moiety-server:local}}
    profiles: [commands]
{HARDENED}\
    mem_limit: 1g
    pids_limit: 256
    environment:
      MOIETY_SERVER_PORT: "{CONTAINER_PORT}"
      MOIETY_SERVER_DATA_DIR: /var/lib/moiety
      MOIETY_SERVER_ROSTER: /var/lib/moiety/roster.toml
    volumes:
      - ${{MOIETY_CONFIG:-.}}:/etc/moiety
      - data:/var/lib/moiety
    networks: [outside]
"""


def _around_text(project: str) -> str:
    return f"""
networks:
  outside:
  operations: {{internal: true}} # metrics and readiness, for the operator's Prometheus; never published

volumes:
  data:
    name: {project}
"""


def next_steps(folder: Path, told: Told, fingerprint: str, *, has_certificate: bool) -> str:
    """Return the next steps for the person who ran it."""
    settings = folder / SETTINGS
    lines = [
        f"{folder}: made. Keep {KEYS} and the other files with 'key' in their names on this machine.",
        "",
        f"Fingerprint of {told.operator}, to be read over the phone:",
        "",
        f"    {fingerprint}",
        "",
        "What to do next (docs/enrolling.md):",
    ]
    if not has_certificate:
        lines.append(
            f"  - put a TLS certificate for {told.url} into {folder / CHAIN} and its key into {folder / TLS_KEY} "
            "(chmod 600); docs/enrolling.md says how with ACME"
        )
    lines += [
        f"  - send {folder / told.card} to the other operator; ask for theirs",
        f"  - read each other the fingerprints over the phone: moiety server pair THEIRS.card.toml --config {settings} "
        "--fingerprint '...'",
        f"  - start the server: moiety server run --config {settings}",
        f"  - invite the requester: moiety server invite NAME --requester --config {settings}",
    ]
    return "\n".join(lines) + "\n"
