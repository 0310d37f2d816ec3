"""A proxy that opens TLS: it has a certificate that everybody trusts, hands every byte on, and keeps a copy."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_PIECE_BYTES = 2**16


class Recording:
    """Everything that was said inside TLS, connection by connection, each direction in one piece."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: list[bytearray] = []

    def stream(self) -> bytearray:
        made = bytearray()
        with self._lock:
            self._streams.append(made)
        return made

    def whole(self) -> bytes:
        with self._lock:
            return b"\n".join(bytes(stream) for stream in self._streams)


class _Proxy:
    def __init__(self, recording: Recording, trusted: ssl.SSLContext, host: str, port: int) -> None:
        self._recording, self._trusted = recording, trusted
        self._host, self._port = host, port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        try:
            onward, answers = await asyncio.open_connection(self._host, self._port, ssl=self._trusted)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._pump(reader, answers), self._pump(onward, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept = self._recording.stream()
        with suppress(OSError):
            while data := await reader.read(_PIECE_BYTES):
                kept += data
                writer.write(data)
                await writer.drain()
        writer.close()


@contextmanager
def proxies(ca_file: Path, host: str, routes: Sequence[tuple[int, int, Path, Path]]) -> Iterator[Recording]:
    """One proxy a route: (own port, the server's port, certificate, its key)."""
    recording, loop = Recording(), asyncio.new_event_loop()
    trusted = ssl.create_default_context(cafile=str(ca_file))
    ready, stop = threading.Event(), asyncio.Event()

    async def live() -> None:
        listening = []
        for own, to, certificate, key in routes:
            opens = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            opens.load_cert_chain(certificate, key)
            serve = _Proxy(recording, trusted, host, to).serve
            listening.append(await asyncio.start_server(serve, host, own, ssl=opens))
        ready.set()
        await stop.wait()
        for one in listening:
            one.close()
        pending = asyncio.all_tasks() - {asyncio.current_task()}
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    thread = threading.Thread(target=loop.run_until_complete, args=(live(),), name="proxies")
    thread.start()
    assert ready.wait(30)
    try:
        yield recording
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()
