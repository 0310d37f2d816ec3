"""Every system's whole rounds, one system after the other, in one sitting on one machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from subprocess import SubprocessError
from typing import Final

from harness.bench.against.whole import flower, nvflare
from harness.bench.against.whole.flower import flower_rounds
from harness.bench.against.whole.nvflare import nvflare_rounds
from harness.bench.against.whole.ours import our_rounds
from harness.bench.against.whole.taken import Asked, Taken
from harness.bench.results import WholeRounds
from protocol.errors import ConfigurationError, MoietyError

_NOTHING: Final = "nothing: the server sees every client's model"


@dataclass(frozen=True)
class System:
    """One row: what it is, and what runs it in a folder; with the bytes between servers per round, if it has two."""

    key: str
    name: str
    version: str
    how: str
    protected: str
    run: Callable[[Asked, Path, Path], tuple[Taken, float | None]] = field(repr=False)


def _flower(secure: bool) -> Callable[[Asked, Path, Path], tuple[Taken, float | None]]:
    return lambda asked, cache, folder: (flower_rounds(asked, cache, folder, secure=secure), None)


def _nvflare(encrypted: bool) -> Callable[[Asked, Path, Path], tuple[Taken, float | None]]:
    return lambda asked, cache, folder: (nvflare_rounds(asked, cache, folder, encrypted=encrypted), None)


SYSTEMS: Final = (
    System(
        "moiety",
        "Moiety, Weight Erosion",
        version("moiety"),
        "two servers over TLS 1.3, an agent for every client and for the requester, weights by distances",
        "updates and weights from both servers, sites and requester, unless both servers work together; distances are "
        "opened to the requester alone, the sum to the sites alone",
        lambda asked, cache, folder: our_rounds(asked, folder),
    ),
    System(
        "nvflare",
        "NVFlare FedAvg",
        nvflare.VERSION,
        "a server and job processes, mutual TLS, the Client API's script inside of the job process",
        _NOTHING,
        _nvflare(encrypted=False),
    ),
    System(
        "nvflare-he",
        "NVFlare FedAvg, HE",
        f"{nvflare.VERSION}, TenSEAL {nvflare.TENSEAL}",
        "the same, weights under CKKS (8192, scale 2^40) with its own filters",
        "updates and sum from the server, unless it works together with any one client: all clients hold one "
        "decryption key, and each opens the sum",
        _nvflare(encrypted=True),
    ),
    System(
        "flower",
        "Flower FedAvg",
        flower.VERSION,
        "a SuperLink, SuperNodes and the processes they start for each message, without TLS",
        _NOTHING,
        _flower(secure=False),
    ),
    System(
        "flower-secagg",
        "Flower FedAvg, SecAgg+",
        flower.VERSION,
        "the same under SecAggPlusWorkflow and secaggplus_mod, 3 shares of which 2 open a key, 22 bits a parameter",
        "updates from the other clients and from a server that follows the protocol; the sum is open to the server",
        _flower(secure=True),
    ),
)
KEYS: Final = tuple(one.key for one in SYSTEMS)


def whole_rounds(
    asked: Asked, cache: Path, only: Sequence[str] = (), say: Callable[[str], None] = lambda text: None
) -> tuple[WholeRounds, ...]:
    """Those of ``only``, or of all. What does not install or run has a row that says so.

    Raises: ConfigurationError for a name in ``only`` that is none
    """
    strange = [one for one in only if one not in KEYS]
    if strange:
        raise ConfigurationError(f"--only: {strange[0]!r} is no system, there are {', '.join(KEYS)}")
    kept = cache.expanduser().resolve()
    say(f"environments of other systems are kept in {kept}")
    rows = []
    for system in SYSTEMS:
        if not only or system.key in only:
            say(f"{system.key}: 1 round to warm up, {asked.rounds} measured")
            rows.append(_row(system, asked, kept))
    return tuple(rows)


def _row(system: System, asked: Asked, cache: Path) -> WholeRounds:
    empty = WholeRounds(name=system.name, version=system.version, how=system.how, protected=system.protected)
    try:
        with tempfile.TemporaryDirectory(prefix="moiety-peers-") as folder:
            taken, between_servers = system.run(asked, cache, Path(folder))
    except MoietyError as failure:
        return empty.model_copy(update={"error": failure.detail})
    except (OSError, SubprocessError) as failure:
        return empty.model_copy(update={"error": f"{type(failure).__name__}: {failure}"})
    one, per = taken.measured, taken.rounds * asked.parameters * asked.clients
    return empty.model_copy(
        update={
            "rounds": taken.rounds,
            "seconds": one.seconds / taken.rounds,
            "server_cpu_s": one.server_cpu_s / taken.rounds,
            "client_cpu_s": one.client_cpu_s / taken.rounds,
            "bytes_up_per_parameter": one.up_bytes / per,
            "bytes_down_per_parameter": one.down_bytes / per,
            "bytes_between_servers_per_parameter": (
                None if between_servers is None else between_servers / (asked.parameters * asked.clients)
            ),
            "server_peak_mb": one.server_peak_mb,
            "client_peak_mb": one.client_peak_mb,
        }
    )
