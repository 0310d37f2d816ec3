"""Modules and machine code in memory of the process that forks a federation's programs.

Imported by name (``processes.py``), in that process alone. Nothing here starts a thread, which a fork would lose
(arrow's allocator has one, which it starts again in the child).

What is in memory here stays in use: the collector of a fork need not look at it, which would copy its pages.
"""

from __future__ import annotations

import gc
import importlib

from harness.warm import warm

for _name in (
    "alembic.command",
    "anyio._backends._asyncio",
    "client_agent.learning.models",
    "client_agent.cli.agent",
    "client_agent.cli.site",
    "client_agent.cli.watch",
    "client_agent.daemon",
    "client_agent.data.source",
    "client_agent.learning.evaluation",
    "client_agent.learning.metrics",
    "client_agent.learning.torch_learner",
    "client_agent.learning.trainer",
    "client_agent.site.founding",
    "cryptography.hazmat.backends.openssl",
    "encodings.idna",
    "harness.federation.learners",
    "harness.federation.processes",
    "httptools",
    "moiety",
    "protocol.arithmetic.numba_kernels",
    "safetensors.numpy",
    "servers.cli",
    "servers.enrolment.folder",
    "servers.ports",
    "sklearn.calibration",
    "sklearn.metrics",
    "sqlalchemy.dialects.sqlite",
    "torch._dynamo",
    "uvicorn",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvloop",
):
    importlib.import_module(_name)
warm()
gc.collect()
gc.freeze()
