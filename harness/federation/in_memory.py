"""What the process that forks a federation's programs has in memory: their modules, and the kernels' machine code.

Imported by name (``forked.py``), in that process alone. Nothing here starts a thread, which a fork would lose.
"""

from __future__ import annotations

import importlib

from harness.warm import warm

for _name in (
    "alembic.command",
    "client_agent.cli.agent",
    "client_agent.learning.learner",
    "client_agent.learning.trainer",
    "httptools",
    "moiety",
    "protocol.arithmetic.numba_kernels",
    "servers.cli",
    "servers.serving",
    "sqlalchemy.dialects.sqlite",
    "torch._dynamo",
    "uvicorn",
    "uvloop",
):
    importlib.import_module(_name)
warm()
