"""An agent in the process that was forked for it, which imports this module: no pytest here."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from client_agent.daemon import Pace, run_agent
from client_agent.settings import load_settings
from harness.federation.learners import Learners


def run_site(learner: Learners, config: str) -> None:
    """An agent that learns with ``learner``, in the process that was forked for it."""
    settings = load_settings(Path(config))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    run_agent(
        settings,
        stop,
        lambda event: print(event.model_dump_json(), flush=True),
        lambda study, seed: learner(settings, study, seed),
        pace=Pace(look_every_s=0.1),  # the requester finds a study in its outbox by looking
    )
