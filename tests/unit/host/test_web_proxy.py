"""The way through an HTTP proxy: settings, tunnel, and every refusal with the next step."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

from host.network import ProxyRefused, WebProxy, open_tunnel, why_unreachable
from protocol.errors import ConfigurationError
from tests.kit.web_proxy import tunnelling_proxy

SECRET = "ward:s3cret"


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [("http://proxy", "proxy", 3128), ("http://10.0.0.1:8080/", "10.0.0.1", 8080), ("http://[::1]:1", "::1", 1)],
)
def test_a_proxy_is_a_host_and_a_port(url: str, host: str, port: int) -> None:
    found = WebProxy.parse(url, SECRET)
    assert (found.host, found.port, found.credentials) == (host, port, SECRET)
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize(
    "url", ["proxy:3128", "https://proxy", "socks5://proxy", "http://", "http://p/x", "http://p?x", "http://p:port"]
)
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="key 'proxy': it is written http://HOST:PORT"):
        WebProxy.parse(url)


def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigurationError, match="name it as 'proxy_credentials'") as refused:
        WebProxy.parse("http://ward:s3cret@proxy")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("credentials", ["ward", "ward:a\nHost: other", "ward:\x7f"])
def test_credentials_are_one_line(credentials: str) -> None:
    with pytest.raises(ConfigurationError, match="one line, user:password"):
        WebProxy.parse("http://proxy", credentials)


def test_a_tunnel_carries_what_is_said(server: tuple[str, int]) -> None:
    counted = [0, 0]

    def count(sent: int, received: int) -> None:
        counted[0] += sent
        counted[1] += received

    with tunnelling_proxy(SECRET) as proxy:
        sock = open_tunnel(WebProxy.parse(proxy.url, SECRET), server, 30.0, count)
        with sock:
            sock.sendall(b"hello")
            assert sock.recv(100) == b"hello"
            assert proxy.asked == [f"CONNECT {server[0]}:{server[1]} HTTP/1.1"]
            assert (counted[0] + 5, counted[1] + 5) == (proxy.bytes_up, proxy.bytes_down)


@pytest.mark.parametrize(
    ("credentials", "answer", "said"),
    [
        (None, None, r"407 Proxy Authentication Required\): it asks for a user name and password"),
        ("ward:wrong", None, "it asks for a user name and password, or those in 'proxy_credentials' are wrong"),
        (SECRET, b"HTTP/1.1 403 Forbidden\r\n\r\n", "ask your network's people to let this machine reach that host"),
        (SECRET, b"HTTP/1.0 502 \x1b[31mBad\r\nX: y\r\n\r\n", "502 \ufffd\\[31mBad.: it cannot reach the server"),
        (SECRET, b"HTTP/1.1 418 Teapot\r\n\r\n", "418 Teapot.: ask your network's people$"),
        (SECRET, b"SSH-2.0-OpenSSH\r\n\r\n", "does not answer as an HTTP proxy: is that its address and port"),
        (SECRET, b"", "closed the connection without an answer"),
        (SECRET, b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 5000, "too long for one"),
    ],
)
def test_a_refusal_says_who_has_to_do_what(
    credentials: str | None, answer: bytes | None, said: str, server: tuple[str, int]
) -> None:
    with tunnelling_proxy(SECRET, answer) as proxy, pytest.raises(ProxyRefused, match=said) as refused:
        open_tunnel(WebProxy.parse(proxy.url, credentials), server, 30.0)
    assert why_unreachable(refused.value) == str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_proxy_that_says_nothing_is_not_waited_for_longer_than_told(server: tuple[str, int]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        proxy = WebProxy("127.0.0.1", silent.getsockname()[1])
        with pytest.raises(ProxyRefused, match="did not answer in time"):
            open_tunnel(proxy, server, 0.2)
    with pytest.raises(ProxyRefused, match="cannot be reached: "):
        open_tunnel(proxy, server, 0.2)


@pytest.fixture
def server():
    """Says back what it hears."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=_echo, args=(client,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def _echo(client: socket.socket) -> None:
    with client, suppress(OSError):
        while piece := client.recv(1000):
            client.sendall(piece)
