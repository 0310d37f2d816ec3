"""Admission before authentication: counts and rates by address.

An address is the connection's, or, behind a declared proxy, the one that the proxy says it forwards for. Of IPv6 the
first 64 bits count, since a stranger has all of the rest. What is signed by a party of the roster costs no allowance.
"""

from __future__ import annotations

import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from servers.settings import Limits, Network

_BURST_S: Final = 10.0
_MOST_ADDRESSES: Final = 2**14
_IPV6_SITE_BITS: Final = 64
_MOST_GROWN: Final = 16
"""Connections that moved a large body hold more than a megabyte of buffers each under TLS, as long as they live."""
T = TypeVar("T")
VISIT: Final = "moiety.visit"
"""The key of a request's scope under which its visit stands."""


class Allowance:
    """So many per second for each address, ten seconds' worth at once; full ones are not remembered."""

    def __init__(self, per_s: float, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._most = max(1.0, per_s * _BURST_S)
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str) -> bool:
        """Take one; return whether there was one left."""
        left = self._now(address)
        if left < 1.0:
            return False
        self._keep(address, left - 1.0)
        return True

    def give_back(self, address: str) -> None:
        """Give back a take that turned out to be a party's."""
        self._keep(address, min(self._most, self._now(address) + 1.0))

    def _now(self, address: str) -> float:
        left, at = self._left.get(address, (self._most, 0.0))
        return min(self._most, left + (self._clock() - at) * self._per_s)

    def _keep(self, address: str, left: float) -> None:
        self._left.pop(address, None)
        if left < self._most:
            self._left[address] = (left, self._clock())
            if len(self._left) > _MOST_ADDRESSES:
                self._left.popitem(last=False)  # the one that has been quiet for longest


class Shares(Generic[T]):
    """A bounded resource that strangers hold, by address: whoever holds most gives one up for whoever holds fewer."""

    def __init__(self) -> None:
        self._held: dict[T, str] = {}
        self._of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[T]:
        """The oldest first."""
        return iter(self._held)

    def of(self, address: str) -> int:
        return self._of[address]

    def add(self, one: T, address: str) -> None:
        self._held[one] = address
        self._of[address] += 1

    def remove(self, one: T) -> None:
        """Forget it; a second time changes nothing."""
        address = self._held.pop(one, None)
        if address is not None:
            self._of[address] -= 1
            if not self._of[address]:
                del self._of[address]

    def given_up_for(self, address: str, busy: Callable[[T], bool]) -> T | None:
        """One of the largest holder, an idle one first, then the oldest; None where ``address`` holds as many."""
        most = max(self._of.values(), default=0)
        if most <= self._of[address]:
            return None
        return min((one for one, holder in self._held.items() if self._of[holder] == most), key=busy)


class Admission:
    """One server's open connections, by address."""

    def __init__(
        self,
        limits: Limits,
        proxies: Sequence[Network] = (),
        clock: Callable[[], float] = time.monotonic,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self.limits = limits
        self._proxies = tuple(proxies)
        self.connections = 0
        self.grown = 0
        self._by_address: Counter[str] = Counter()
        self.strangers: Shares[Visit] = Shares()
        self.unsigned = Allowance(limits.unsigned_per_s, clock)
        self._on_refused = on_refused

    def admit(self, peer: str) -> Visit | None:
        """Let a connection in, or None: too many are open, or this address opens them too fast."""
        proxied = self._is_proxy(peer)
        address = _grouped(peer)
        allowed = proxied or (self.has_room(address) and self.unsigned.take(address))
        if not (allowed and self._make_room("" if proxied else address)):
            self._on_refused()
            return None
        self.connections += 1
        visit = Visit(self, peer, address, proxied)
        if not proxied:
            self.add(visit, address)
        return visit

    def _make_room(self, address: str) -> bool:
        """Close a stranger's connection where all are open, so that nobody keeps the others out by holding them."""
        if self.connections < self.limits.connections:
            return True
        stranger = self.strangers.given_up_for(address, busy=lambda visit: visit.asking is not None)
        if stranger is None:
            return False
        self._on_refused()
        stranger.leave()
        stranger.abort()
        return True

    def has_room(self, address: str) -> bool:
        return self._by_address[address] < self.limits.connections_per_address

    def _is_proxy(self, address: str) -> bool:
        found = _parsed(address)
        return found is not None and any(found in network for network in self._proxies)

    def forwarded(self, peer: str, lines: Sequence[bytes]) -> str:
        """The last address that no declared proxy has; whatever stands before it anybody may have written."""
        said = [part.strip() for line in lines for part in line.decode("latin-1").split(",")]
        for address in reversed(said):
            found = _parsed(address)
            if found is None:
                break
            if not self._is_proxy(str(found)):
                return str(found)
        return peer

    def add(self, visit: Visit, address: str) -> None:
        self._by_address[address] += 1
        self.strangers.add(visit, address)

    def remove(self, visit: Visit, address: str) -> None:
        self.strangers.remove(visit)
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


@dataclass(eq=False)
class Visit:
    """One admitted connection."""

    admission: Admission = field(repr=False)
    peer: str
    address: str
    proxied: bool
    open: bool = True
    signed: bool = False
    grown: bool = False
    asking: str | None = None
    abort: Callable[[], object] = field(default=lambda: None, repr=False)
    """Ends the connection at once; set by whoever has it."""

    def begin(self, forwarded_for: Sequence[bytes]) -> str | None:
        """Return the address of a request whose head is complete; None when it may not ask now."""
        of = self.admission
        asking = of.forwarded(self.peer, forwarded_for) if self.proxied else self.peer
        address = _grouped(asking)
        if not self.open or (self.proxied and not of.has_room(address)) or not of.unsigned.take(address):
            return None
        if self.proxied:
            of.add(self, address)
        self.asking = address
        return asking

    def end(self) -> None:
        """The request has its answer, or its connection is gone."""
        if self.proxied and self.asking is not None:
            self.admission.remove(self, self.asking)
        self.asking = None

    def authenticated(self) -> None:
        """The request that is under way, and so the connection, is a party's."""
        if self.asking is not None:
            self.admission.unsigned.give_back(self.asking)
        if not (self.signed or self.proxied):
            self.admission.unsigned.give_back(self.address)
        self.signed = True
        self.admission.strangers.remove(self)

    def grew(self) -> None:
        """A large body went through this connection."""
        if self.open and not self.grown:
            self.grown = True
            self.admission.grown += 1

    @property
    def too_large(self) -> bool:
        """Return whether this connection should end with the answer under way, for the memory that it holds."""
        return self.grown and self.admission.grown > _MOST_GROWN

    def leave(self) -> None:
        """The connection is closed; a second time changes nothing."""
        if self.open:
            self.open = False
            self.admission.grown -= self.grown
            self.admission.connections -= 1
            self.end()
            if not self.proxied:
                self.admission.remove(self, self.address)


def _grouped(address: str) -> str:
    """Return the unit that is counted as one: an IPv4 address, or the first 64 bits of an IPv6 one."""
    found = _parsed(address)
    if found is None:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, _IPV6_SITE_BITS), strict=False))
    return str(found)


def _parsed(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address as a socket or a proxy writes it: perhaps with a port, an IPv4 one perhaps as IPv6."""
    bare = text[1:].partition("]")[0] if text.startswith("[") else text
    if bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        found = ipaddress.ip_address(bare)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
