"""A cap holds over all connections together, on a clock of its own; real sockets move what they should."""

from __future__ import annotations

import socket
import threading

import pytest

from client_agent.net.transport import PACED_BYTES, Account, CountedStream, Pace, Paces

RATE = 100_000
SIZE = 500_000


class Clock:
    """Goes on by what is slept."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.longest_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.longest_s = max(self.longest_s, seconds)


def pace(clock: Clock) -> Pace:
    return Pace(RATE, clock.monotonic, clock.sleep)


def test_so_many_bytes_take_so_long() -> None:
    clock = Clock()
    capped = pace(clock)
    for _ in range(10):
        capped.take(RATE // 10)
    assert clock.now_s == pytest.approx(1.0 - 0.25)  # a burst of a quarter of a second


def test_a_quiet_hour_is_not_saved_up() -> None:
    clock = Clock()
    capped = pace(clock)
    clock.now_s = 3600.0
    capped.take(2 * RATE)
    assert clock.now_s == pytest.approx(3600.0 + 2.0 - 0.25)


@pytest.mark.parametrize("upwards", [True, False])
def test_a_capped_socket_moves_every_byte_at_the_pace(*, upwards: bool) -> None:
    clock = Clock()
    paces = Paces(pace(clock), None) if upwards else Paces(None, pace(clock))
    ours, theirs = socket.socketpair()
    account, taken = Account(), bytearray()
    stream = CountedStream(ours, account, paces)

    def drain() -> None:
        while data := theirs.recv(2**16):
            taken.extend(data)

    def fill() -> None:
        theirs.sendall(bytes(SIZE))
        theirs.close()

    other = threading.Thread(target=drain if upwards else fill)
    other.start()
    if upwards:
        stream.write(bytes(SIZE), within_s=30.0)
    else:
        while data := stream.read(2**18, within_s=30.0):
            taken.extend(data)
    stream.close()
    other.join(30.0)
    theirs.close()
    assert len(taken) == SIZE == (account.sent_bytes if upwards else account.received_bytes)
    assert clock.now_s == pytest.approx(SIZE / RATE - 0.25)
    assert clock.longest_s <= PACED_BYTES / RATE + 1e-9  # a stop of the agent waits no longer


def test_without_a_setting_there_is_no_cap() -> None:
    assert Paces.of(None, None) == Paces()
    both = Paces.of(RATE, None)
    assert both.up is not None
    assert both.down is None
