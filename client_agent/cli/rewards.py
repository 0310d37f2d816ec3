"""``moiety agent rewards``: a table per study, or JSON lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from client_agent.cli.tables import add_row, console, table
from client_agent.site.events import read_metrics
from client_agent.site.rewards import Reward, rewards_of
from protocol.errors import ConfigurationError

_UNKNOWN: Final = "its own affair"


def show_rewards(state_dir: Path, site: str, requester: str, study: str | None, *, json_output: bool) -> None:
    """What the records below ``state_dir`` say. Raises: ConfigurationError when there are none"""
    found = sorted((state_dir / "studies").glob("*/metrics.jsonl"))
    chosen = [path for path in found if study in (None, path.parent.name)]
    if not chosen:
        which = "any study" if study is None else f"study {study!r}"
        raise ConfigurationError(f"key 'state_dir': {state_dir} has no round of {which}; nothing was given yet")
    for path in chosen:
        rewards = rewards_of(read_metrics(path), site, requester)
        if json_output:
            lines = [json.dumps({"study": path.parent.name, **reward.model_dump()}) for reward in rewards]
            sys.stdout.write("".join(line + "\n" for line in lines))
        else:
            _print(path.parent.name, rewards)


def _print(study: str, rewards: tuple[Reward, ...]) -> None:
    shown = table("site", "rounds", "sum of weights", title=study)
    for reward in rewards:
        weights = _UNKNOWN if reward.weights is None else f"{reward.weights:.3f}"
        add_row(shown, reward.site, str(reward.rounds), weights)
    console().print(shown)
