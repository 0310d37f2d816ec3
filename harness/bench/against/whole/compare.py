"""Every system's whole rounds, one system after the other, in one sitting on one machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from subprocess import SubprocessError
from typing import Final

from harness.bench import probe
from harness.bench.against.whole import flower, nvflare
from harness.bench.against.whole.flower import flower_rounds
from harness.bench.against.whole.nvflare import nvflare_rounds
from harness.bench.against.whole.ours import our_rounds
from harness.bench.against.whole.taken import Asked, Taken
from harness.bench.results import PeersBenchmark, WholeRounds
from harness.versions import versions
from protocol.errors import ConfigurationError, MoietyError

_NOTHING: Final = "nothing: the server sees every client's model"


@dataclass(frozen=True)
class System:
    """One row: what it is, and what runs it in a folder; with the bytes between servers per round, if it has two.

    ``most_rounds`` are measured however many are asked for: some take minutes each.
    """

    key: str
    name: str
    version: str
    how: str
    protected: str
    most_rounds: int
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
        8,
        lambda asked, cache, folder: our_rounds(asked, folder),
    ),
    System(
        "nvflare",
        "NVFlare FedAvg",
        nvflare.VERSION,
        "a server and job processes, mutual TLS, the Client API's script inside of the job process",
        _NOTHING,
        8,
        _nvflare(encrypted=False),
    ),
    System(
        "nvflare-he",
        "NVFlare FedAvg, HE",
        f"{nvflare.VERSION}, TenSEAL {nvflare.TENSEAL}",
        "the same, weights under CKKS (8192, scale 2^40) with its own filters",
        "updates and sum from the server, unless it works together with any one client: all clients hold one "
        "decryption key, and each opens the sum",
        2,
        _nvflare(encrypted=True),
    ),
    System(
        "flower",
        "Flower FedAvg",
        flower.VERSION,
        "a SuperLink, SuperNodes and the processes they start for each message, without TLS",
        _NOTHING,
        2,
        _flower(secure=False),
    ),
    System(
        "flower-secagg",
        "Flower FedAvg, SecAgg+",
        flower.VERSION,
        "the same under SecAggPlusWorkflow and secaggplus_mod, 3 shares of which 2 open a key, 22 bits a parameter",
        "updates from the other clients and from a server that follows the protocol; the sum is open to the server",
        1,
        _flower(secure=True),
    ),
)
KEYS: Final = tuple(one.key for one in SYSTEMS)


def benchmark_rounds(
    asked: Asked, cache: Path, only: Sequence[str], say: Callable[[str], None] = lambda text: None
) -> PeersBenchmark:
    """Whole rounds of ``only`` or of all. Raises: as :func:`whole_rounds`"""
    named = "".join(f" --only {one}" for one in only)
    return PeersBenchmark(
        parameters=asked.parameters,
        sites=asked.clients,
        command=f"moiety bench peers --parameters {asked.parameters} --sites {asked.clients} --rounds {asked.rounds}"
        f"{named}",
        date=datetime.now(tz=UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine=f"{probe.machine()}, load {os.getloadavg()[0]:.1f}",
        rounds=whole_rounds(asked, cache, only, say),
        versions={one.name: one.version for one in versions()},
    )


def whole_rounds(
    asked: Asked, cache: Path, only: Sequence[str] = (), say: Callable[[str], None] = lambda text: None
) -> tuple[WholeRounds, ...]:
    """Those of ``only``, or of all. What does not install or run has a row that says so.

    Raises: ConfigurationError for a name in ``only`` that is none
    """
    strange = [one for one in only if one not in KEYS]
    if strange:
        raise ConfigurationError(f"--only: {strange[0]!r} is no system, there are {', '.join(KEYS)}")
    kept = Path(os.path.realpath(cache.expanduser()))
    say(f"environments of other systems are kept in {kept}")
    rows = []
    for system in SYSTEMS:
        if not only or system.key in only:
            own = replace(asked, rounds=min(asked.rounds, system.most_rounds))
            say(f"{system.key}: 1 round to warm up, {own.rounds} measured")
            rows.append(_row(system, own, kept))
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
