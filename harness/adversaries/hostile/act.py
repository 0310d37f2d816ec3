"""What a hostile message is: one request at some point of a real round."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import httpx

from harness.adversaries.scripted_rounds import OpenRound
from harness.federation.memory.servers import ServersInMemory

Round: TypeAlias = OpenRound[ServersInMemory]
Act: TypeAlias = Callable[[Round], httpx.Response]
