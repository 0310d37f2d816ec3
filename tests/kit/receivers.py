"""Real receivers on the loopback, each in a thread: an SMTP server with STARTTLS and a login, an HTTPS server."""

from __future__ import annotations

import base64
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import trustme

from tests.ports import HOST


def tls_for(ca: trustme.CA) -> ssl.SSLContext:
    """A server's context with a certificate for the loopback."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(HOST).configure_cert(context)
    return context


@dataclass(frozen=True)
class Mail:
    """One message as it came: whether under TLS, who had logged in, and the RCPT lines."""

    under_tls: bool
    user: str | None
    to: tuple[str, ...]
    message: bytes


@dataclass
class Mailbox:
    """Mail that an SMTP server took; ``refuses`` is its answer to MAIL in place of yes."""

    port: int = 0
    refuses: str = ""
    taken: list[Mail] = field(default_factory=list)


class _Session(socketserver.StreamRequestHandler):
    """One connection: as much of RFC 5321 and 3207 as smtplib speaks."""

    box: Mailbox
    tls: ssl.SSLContext
    login: tuple[str, str] | None

    def handle(self) -> None:
        self._under_tls, self._lines = False, self.rfile
        self._user: str | None = None
        self._to: list[str] = []
        try:
            self._say("220 receiver")
            while (line := self._lines.readline()) and self._answer(line.decode().strip()):
                pass
        except (OSError, ValueError):
            return  # the caller has gone, or does not believe the certificate
        finally:
            if self._lines is not self.rfile:
                self._lines.close()
            self.request.close()

    def _answer(self, words: str) -> bool:
        """Answer one command; return false when the conversation is over."""
        verb = words[:4].upper()
        match verb:
            case "EHLO":
                offered = ["250-receiver", *([] if self._under_tls else ["250-STARTTLS"])]
                self._say(*offered, *(["250-AUTH PLAIN"] if self.login else []), "250 8BITMIME")
            case "STAR":
                self._say("220 go on")
                self.request = self.tls.wrap_socket(self.request, server_side=True)
                self._lines, self._under_tls = self.request.makefile("rb"), True
            case "AUTH":
                _, user, password = base64.b64decode(words.split()[2]).decode().split("\0")
                self._user = user if (user, password) == self.login else None
                self._say("235 welcome" if self._user else "535 no")
            case "MAIL":
                allowed = not self.box.refuses and (self.login is None or self._user)
                self._say("250 ok" if allowed else self.box.refuses or "530 log in")
            case "DATA":
                self._take_message()
            case _:
                self._to += [words] if verb == "RCPT" else []
                self._say("221 bye" if verb == "QUIT" else "250 ok")
        return verb != "QUIT"

    def _take_message(self) -> None:
        self._say("354 go on")
        body = b""
        while (part := self._lines.readline()) != b".\r\n":
            body += part
        self.box.taken.append(Mail(self._under_tls, self._user, tuple(self._to), body))
        self._say("250 taken")

    def _say(self, *lines: str) -> None:
        self.request.sendall("".join(f"{line}\r\n" for line in lines).encode())


@contextmanager
def smtp_receiver(ca: trustme.CA, login: tuple[str, str] | None) -> Iterator[Mailbox]:
    box = Mailbox()
    session = type("Session", (_Session,), {"box": box, "tls": tls_for(ca), "login": login})
    server = socketserver.ThreadingTCPServer((HOST, 0), session)
    server.daemon_threads = True
    box.port = server.server_address[1]
    with _running(server):
        yield box


@dataclass
class Hook:
    """Requests that an HTTPS server took: the body and headers of every POST; ``status`` is its answer."""

    url: str = ""
    status: int = 204
    taken: list[tuple[bytes, dict[str, str]]] = field(default_factory=list)


@contextmanager
def webhook_receiver(ca: trustme.CA) -> Iterator[Hook]:
    hook = Hook()

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.taken.append((body, dict(self.headers.items())))
            self.send_response(hook.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer((HOST, 0), Answer)
    server.daemon_threads = True
    server.socket = tls_for(ca).wrap_socket(server.socket, server_side=True)
    hook.url = f"https://{HOST}:{server.server_address[1]}/hooks/moiety"
    with _running(server):
        yield hook


@contextmanager
def _running(server: socketserver.TCPServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)
