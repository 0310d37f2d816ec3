"""What one of several processes of a server is called: the same at its next start, and unlike every other one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from servers.settings import Role
from servers.store.processes import process_name

MOST_BYTES = 63
"""Of a connection's name in PostgreSQL."""
POD = "moiety-federation-northern-hospitals-upload"


def name(host: str, monkeypatch: pytest.MonkeyPatch, role: Role = Role.UPLOAD, port: int = 8443) -> str:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    settings: Any = SimpleNamespace(role=role, port=port)
    return process_name(settings)


@pytest.mark.parametrize(
    "hosts",
    [
        (f"{POD}-0", f"{POD}-1"),
        ("northern-hospitals-moiety-uploads-5d4f8b7c9d-x7k2p", "northern-hospitals-moiety-uploads-5d4f8b7c9d-q9zrw"),
        ("h" * 40, "h" * 41),
        ("h" * 253, "h" * 252 + "i"),
    ],
)
def test_hosts_with_long_names_differ(hosts: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (name(host, monkeypatch) for host in hosts)
    assert first != second
    assert first == name(hosts[0], monkeypatch), "at the next start too"


def test_a_name_begins_as_the_host_does_and_a_short_one_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert name("operator-a-upload-0", monkeypatch) == "upload-operator-a-upload-0-8443"
    assert name("h" * 40, monkeypatch) == f"upload-{'h' * 40}-8443"
    assert name(f"{POD}-0", monkeypatch).startswith(f"upload-{POD[:31]}-")


@pytest.mark.parametrize("role", [Role.UPLOAD, Role.DRIVER])
def test_postgresql_shortens_none(role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(name("h" * 253, monkeypatch, role, 65535).encode()) <= MOST_BYTES


def test_ports_and_roles_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    of = [(role, port) for role in (Role.UPLOAD, Role.DRIVER) for port in (8443, 8444)]
    assert len({name(f"{POD}-0", monkeypatch, role, port) for role, port in of}) == len(of)
