"""A server's shards from its settings."""

from __future__ import annotations

from protocol.errors import ConfigurationError, ProtocolViolation
from servers.settings import Engine, Role, ServerSettings
from servers.shards.on_ray import OnRay
from servers.shards.passes import OWNER, Here, Shards, Workers
from servers.shards.wrapping import WrappingKey, read_wrapping_key
from servers.storage.opened import open_storage
from servers.storage.place import Storage

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
    return Shards(
        _workers(settings, url, storage, wrapping),
        storage,
        wrapping,
        settings.data_dir / "sums",
        range_elements=cluster.range_parameters,
        shares_a_task=_SHARES_A_TASK,
    )


def _workers(settings: ServerSettings, url: str, storage: Storage, wrapping: WrappingKey) -> Workers:
    """A process that takes uploads alone only writes to the storage: it needs no cluster."""
    cluster = settings.ray
    if settings.role is Role.UPLOAD or cluster.wrapping_key is None:
        return Here(storage, wrapping)
    return OnRay(cluster.address, cluster.cpus, url, cluster.wrapping_key)


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
