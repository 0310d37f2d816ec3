"""Ranges as stateless tasks of a Ray cluster (docs/operating.md, "A cluster of workers").

What Ray sees, keeps and writes down: names in the storage, ranges, challenges, wrapped keys, tags of encrypted chunks
and their key, parts of sketches under a pad. A worker opens wrapped keys with a key from a file on its own machine. A
lost worker's range is done again.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from host.network import is_loopback
from protocol.errors import ConfigurationError, ErrorCode, MoietyError, ProtocolViolation, ShareAltered, Unavailable
from servers.scale.passes import OWNER, Here, Shards
from servers.scale.ranges import Done, Task, carry_out, read_wrapping_key
from servers.settings import Engine, Role, ServerSettings
from servers.store.object_storage import Storage, open_storage

_POLL_S: Final = 0.2
_OBJECT_STORE_BYTES: Final = 100_000_000
_AGAIN_AFTER_A_LOST_WORKER: Final = 5
_AHEAD: Final = 2
"""Tasks under way for each CPU: small enough that giving up is quick."""


@dataclass(frozen=True)
class Places:
    """The places on a worker's own machine, and the code that it must have."""

    storage: str
    wrapping_key: str
    code: str


@dataclass(frozen=True)
class _Refused:
    """A range could not be done; in words that hold no secret."""

    code: str
    why: str


class OnRay:
    """Raises: ConfigurationError, where Ray is not installed, or no cluster is reached or may be used"""

    def __init__(self, address: str | None, cpus: int, storage: str, wrapping_key: Path) -> None:
        self._ray = _connected(address, cpus)
        self._places = Places(storage, str(wrapping_key.absolute()), code_digest())
        self._remote = self._ray.remote(num_cpus=1, max_retries=_AGAIN_AFTER_A_LOST_WORKER)(_carry_out_there)
        self._at_once = _AHEAD * max(1, int(self._ray.cluster_resources().get("CPU", cpus)))

    def do(self, tasks: Sequence[Task], over: threading.Event) -> Iterator[Done]:
        ahead, waiting = iter(tasks), list[Any]()
        try:
            while not over.is_set():
                for task in ahead:
                    waiting.append(self._remote.remote(task, self._places))
                    if len(waiting) >= self._at_once:
                        break
                if not waiting:
                    return
                finished, waiting = self._ray.wait(waiting, timeout=_POLL_S)
                for one in finished:
                    yield self._result(one)
        finally:
            for one in waiting:
                self._ray.cancel(one)

    def _result(self, finished: Any) -> Done:  # noqa: ANN401  (Ray is an extra)
        try:
            found: Done | _Refused = self._ray.get(finished)
        except self._ray.exceptions.RayError as error:
            raise Unavailable(
                f"the cluster lost a range {_AGAIN_AFTER_A_LOST_WORKER + 1} times ({type(error).__name__}); look at "
                "its machines (memory, above all), then it goes on by itself"
            ) from None
        if isinstance(found, _Refused) and found.code == ErrorCode.SHARE_ALTERED:
            raise ShareAltered(found.why)
        if isinstance(found, _Refused):
            raise Unavailable(found.why)
        return found

    def close(self) -> None:
        self._ray.shutdown()


def _carry_out_there(task: Task, places: Places) -> Done | _Refused:
    if code_digest() != places.code:
        return _Refused("other_code", f"machine {socket.gethostname()} of the cluster has another version: install one")
    try:
        return carry_out(task, _storage_there(places.storage), _wrapping_there(Path(places.wrapping_key)))
    except MoietyError as refused:
        return _Refused(refused.code, f"machine {socket.gethostname()}: {refused.detail}")
    except Exception as error:
        return _Refused("internal", f"machine {socket.gethostname()}: a range failed ({type(error).__name__})")


_storage_there: Final = cache(open_storage)
_wrapping_there: Final = cache(read_wrapping_key)


@cache
def code_digest() -> str:
    """SHA-256 over the code that decides what a range gives."""
    root, found = Path(__file__).resolve().parents[2], hashlib.sha256()
    for folder in ("protocol", "servers/scale", "servers/store"):
        for path in sorted((root / folder).rglob("*.py")):
            found.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return found.hexdigest()


def _connected(address: str | None, cpus: int) -> Any:  # noqa: ANN401  # Ray has no types here
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else a local cluster reports what it does to Ray's makers
    _require_guarded(address)
    try:
        ray = importlib.import_module("ray")
    except ModuleNotFoundError:
        raise ConfigurationError("engine = \"ray\" needs Ray: pip install 'moiety[server,scale]'") from None
    own: dict[str, object] = {
        "num_cpus": cpus,
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES,
    }
    try:
        ray.init(
            address="local" if address is None else address,
            log_to_driver=False,
            configure_logging=False,
            **(own if address is None else {}),
        )
    except Exception as error:  # Ray raises the class itself where a cluster does not come up in time
        reason = str(error).strip().splitlines()[0]
        where = "of this machine starts" if address is None else f"is reached at {address}"
        raise ConfigurationError(f'engine = "ray": no Ray cluster {where}: {reason}') from None
    return ray


def _require_guarded(address: str | None) -> None:
    """Whoever reaches a cluster can run any code on it. Raises: ConfigurationError"""
    if address is None or is_loopback(address.removeprefix("ray://").rsplit(":", 1)[0]):
        return
    asked = {"RAY_USE_TLS": "1", "RAY_AUTH_MODE": "token"}
    lacking = [f"{name}={value}" for name, value in asked.items() if os.environ.get(name) != value]
    if lacking:
        raise ConfigurationError(
            f"key 'ray.address': {address} is another machine, and {' and '.join(lacking)} is not set: whoever reaches "
            "a cluster without them runs code beside your shares; set them here and on all its machines"
        )


_SHARES_A_TASK = 32
"""At the usual range 1 GB of shares: a worker's memory; fewer make more tasks of the same work."""


def open_shards(settings: ServerSettings, owner: str) -> Shards | None:
    """None where the server does its passes itself. ``owner``: whose the storage is.

    Raises: ConfigurationError
    """
    cluster = settings.ray
    if settings.engine is not Engine.RAY or cluster.wrapping_key is None:
        return None
    wrapping = read_wrapping_key(cluster.wrapping_key)
    url = cluster.storage or str((settings.data_dir / "ranges").absolute())
    storage = open_storage(url)
    _require_own(storage, owner)
    only_writes = settings.role is Role.UPLOAD  # a process that takes uploads alone needs no cluster
    return Shards(
        Here(storage, wrapping) if only_writes else OnRay(cluster.address, cluster.cpus, url, cluster.wrapping_key),
        storage,
        wrapping,
        settings.data_dir / "sums",
        range_elements=cluster.range_parameters,
        shares_a_task=_SHARES_A_TASK,
    )


def _require_own(storage: Storage, owner: str) -> None:
    """Require that the storage is this server's alone, since files without a row are deleted there. Raises:
    ConfigurationError
    """
    try:
        found = storage.read(OWNER, 0, 1024).decode(errors="replace")
    except ProtocolViolation:
        if storage.names():
            raise ConfigurationError(
                "key 'ray.storage': the place is not empty and no server's; give another"
            ) from None
        storage.write(OWNER, owner.encode())
        return
    if found != owner:
        raise ConfigurationError(f"key 'ray.storage': the place belongs to {found!r}, this is {owner!r}; give another")
