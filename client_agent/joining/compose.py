"""The compose file of a joined site's folder: the agent, and a second service for commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from host.compose import HARDENED, LOGGED

COMPOSE: Final = "compose.yaml"


def compose_text(site: str, data: Path) -> str:
    """``data``: the data folder on the machine that holds the joined folder; the containers see it as /data."""
    project = f"moiety-{site}"
    mount = json.dumps(f"${{MOIETY_DATA:-{data}}}:/data:ro")
    return _agent_text(site, project, mount) + _commands_text(mount) + _page_text(mount) + _around_text(project)


def _agent_text(site: str, project: str, mount: str) -> str:
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
"""


def _commands_text(mount: str) -> str:
    return f"""\
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
"""


def _page_text(mount: str) -> str:
    return f"""\
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
"""


def _around_text(project: str) -> str:
    return f"""
networks:
  outside:

volumes:
  state:
    name: {project}
"""
