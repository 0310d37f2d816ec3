"""A server's sessions: whose they are, how long they live, how many a site has, and what each request costs them."""

from __future__ import annotations

import pytest

from protocol.channel.envelope import EnclosedRequest
from protocol.channel.keys import SEALING_KEY_BYTES, generate_sealing_key
from protocol.channel.session import HEAD_BYTES, MOST_COUNTER, SessionKeys, accepted, close_request, offered
from protocol.channel.signing import MAX_AGE_S, MAX_SKEW_S, DigestField
from protocol.errors import BadSignature, MalformedMessage, SessionUnknown
from protocol.messages.control import Party
from protocol.sharing import Side
from servers.roster.sessions import LIVES_S, MOST_OF_A_SITE, Sessions
from tests.unit.client_agent.federation import ROSTER, operator_keys

NOW = 1_800_000_000
SERVER = operator_keys(Side.A).key_id
ONE, OTHER = ROSTER.sites[0], ROSTER.sites[1]
ASKED = EnclosedRequest(
    method="GET",
    target="/v1/studies",
    body_digest="00" * 32,
    digest_field=DigestField.CONTENT,
    enclosed_bytes=0,
    body_bytes=0,
)


class Held:
    """A server's sessions on a clock of their own, and one of them as its site holds it."""

    def __init__(self) -> None:
        self.now = float(NOW)
        self.sessions = Sessions(lambda: self.now)

    def opened(self, party: Party = ONE) -> tuple[bytes, SessionKeys]:
        key = generate_sealing_key(b"k" * SEALING_KEY_BYTES)
        offer = offered(b"o" * 32, key)
        grant = self.sessions.grant(party, SERVER, offer)
        keys = accepted(offer, key, grant, caller=party.key_id, server=SERVER)
        return bytes.fromhex(grant.session), keys

    def head(self, session: tuple[bytes, SessionKeys], counter: int = 0, late_s: int = 0) -> bytes:
        name, keys = session
        return close_request(keys, name, counter, int(self.now) - late_s, ASKED, b"")[:HEAD_BYTES]

    def take(self, tagged: bytes, *, is_site: bool = True, server: str = SERVER) -> Party:
        return self.sessions.take(tagged, lambda party: is_site, server)[0].party


def test_a_request_is_its_sites() -> None:
    held = Held()
    one, other = held.opened(ONE), held.opened(OTHER)
    assert held.take(held.head(one)) == ONE
    assert held.take(held.head(other)) == OTHER


def test_another_sites_session_is_none_of_ones_own() -> None:
    """A site that knows the id of another's session has other keys."""
    held = Held()
    (mine, _), (_, others) = held.opened(ONE), held.opened(OTHER)
    with pytest.raises(BadSignature, match="not its owner's"):
        held.take(held.head((mine, others)))


def test_a_counter_is_used_up_even_where_nothing_followed() -> None:
    held = Held()
    session = held.opened()
    held.take(held.head(session, 5))
    with pytest.raises(BadSignature, match="counter came before"):
        held.take(held.head(session, 5))
    held.take(held.head(session, 4))


@pytest.mark.parametrize(("late_s", "words"), [(MAX_AGE_S + 1, "s ago"), (-MAX_SKEW_S - 1, "in the future")])
def test_a_request_lives_a_minute_and_its_counter_goes_on_living(late_s: int, words: str) -> None:
    held = Held()
    session = held.opened()
    with pytest.raises(BadSignature, match=words):
        held.take(held.head(session, 1, late_s))
    assert held.take(held.head(session, 1)) == ONE


def test_a_session_ends_with_its_hour_and_a_forged_head_ends_none() -> None:
    held = Held()
    session = held.opened()
    held.now += LIVES_S - 1
    with pytest.raises(BadSignature):
        held.take(held.head(session)[:-1] + b"\0")
    assert held.take(held.head(session)) == ONE
    held.now += 1
    with pytest.raises(SessionUnknown, match="its time is over"):
        held.take(held.head(session, 1))
    with pytest.raises(SessionUnknown, match="none of this id"):
        held.take(held.head(session, 2))


def test_a_session_takes_so_many_requests() -> None:
    held = Held()
    session = held.opened()
    with pytest.raises(SessionUnknown, match="its time is over"):
        held.take(held.head(session, MOST_COUNTER))


def test_a_session_ends_with_the_keys_of_either_party() -> None:
    held = Held()
    for changed in ({"is_site": False}, {"server": "f" * 32}):
        session = held.opened()
        with pytest.raises(SessionUnknown, match="keys have changed"):
            held.take(held.head(session), **changed)
        with pytest.raises(SessionUnknown, match="none of this id"):
            held.take(held.head(session))


def test_no_session_outlives_a_restart() -> None:
    held, again = Held(), Held()
    with pytest.raises(SessionUnknown, match="ask again in an envelope"):
        again.take(held.head(held.opened()))


def test_a_site_has_so_many_and_the_least_recently_used_one_makes_room() -> None:
    held = Held()
    others = held.opened(OTHER)
    mine = [held.opened() for _ in range(MOST_OF_A_SITE)]
    held.take(held.head(mine[0]))
    held.opened()
    assert len(held.sessions) == MOST_OF_A_SITE + 1
    assert held.take(held.head(mine[0], 1)) == ONE
    with pytest.raises(SessionUnknown):
        held.take(held.head(mine[1]))
    assert held.take(held.head(others)) == OTHER


def test_sessions_whose_time_is_over_make_room_for_everybody() -> None:
    held = Held()
    for party in (ONE, OTHER):
        held.opened(party)
    held.now += LIVES_S
    held.opened()
    assert len(held.sessions) == 1


def test_what_is_no_head_is_refused() -> None:
    with pytest.raises(MalformedMessage):
        Held().take(b"short")
