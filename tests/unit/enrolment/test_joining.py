"""Two invitations become a registration at both operators: once, by the invited site, and again after any failure."""

from __future__ import annotations

import errno
import os
import stat
import tomllib
from pathlib import Path

import pytest
import yaml

from client_agent.settings import load_settings
from client_agent.site.enrolment import join
from client_agent.site.enrolment_folder import Wanted, is_joined, open_folder
from protocol.errors import (
    BadSignature,
    ConfigurationError,
    ConflictingMessage,
    StorageFull,
    Unavailable,
)
from protocol.roster.enrolment import Asked, Registration, close_asked, dump_card
from protocol.sharing import Side
from tests.kit.present import present
from tests.unit.enrolment.cards import operator_card
from tests.unit.enrolment.enrolling import HOUR_S, Operators, full_disk, operators
from tests.unit.parties import party_keys

ROOT = Path(__file__).parents[3]


def files_of(both: Operators) -> list[bytes]:
    return [both.register_file(side).read_bytes() for side in Side]


def test_a_site_joins_with_keys_of_its_own(both: Operators) -> None:
    joined = both.join("clinic-1")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in joined.folder.iterdir()}
    assert modes.pop("keys.toml") == 0o600
    assert set(modes) == {
        "site.public.toml", "ca.pem", "settings.toml", "compose.yaml", "operator-a.card.toml", "operator-b.card.toml",
    }  # fmt: skip
    settings = load_settings(joined.folder / "settings.toml")
    assert (settings.site, settings.keys, settings.ca) == (
        "clinic-1", joined.folder / "keys.toml", joined.folder / "ca.pem",
    )  # fmt: skip
    for side in Side:
        known = present(both.desks[side].register.registrant("clinic-1"))
        assert (known.party, known.admitted, known.requester) == (joined.party, False, False)


def test_the_compose_file_confines_the_agent_as_the_shipped_one(both: Operators) -> None:
    """Apart from where settings, data and state lie; the second service differs in what it may write."""
    made = yaml.safe_load((both.join("clinic-1").folder / "compose.yaml").read_text())
    shipped = yaml.safe_load((ROOT / "deploy" / "site.yaml").read_text())["services"]["agent"]
    agent, commands = made["services"]["agent"], made["services"]["moiety"]
    assert agent.pop("volumes") == [
        ".:/etc/moiety:ro", f"${{MOIETY_DATA:-{both.folder / 'data'}}}:/data:ro", "state:/var/lib/moiety",
    ]  # fmt: skip
    assert commands.pop("volumes")[0] == ".:/etc/moiety"
    told = {"MOIETY_AGENT_DATA": "/data", "MOIETY_AGENT_STATE_DIR": "/var/lib/moiety"}
    assert agent.pop("environment") == commands["environment"] == told
    shipped.pop("volumes")
    assert agent == shipped
    assert made["name"] == made["volumes"]["state"]["name"] == "moiety-clinic-1"
    for kept in ("read_only", "cap_drop", "security_opt", "mem_limit", "pids_limit", "tmpfs", "image", "networks"):
        assert commands[kept] == shipped[kept], kept
    assert commands["profiles"] == ["commands"]
    page = made["services"]["page"]
    assert page["volumes"][0] == ".:/etc/moiety:ro"
    assert (page["profiles"], page["network_mode"]) == (["commands"], "host")
    assert page["command"] == ["agent", "page", "--config", "/etc/moiety/settings.toml"]
    for kept in ("read_only", "cap_drop", "security_opt", "pids_limit", "tmpfs"):
        assert page[kept] == shipped[kept], kept
    assert "ports" not in agent | commands | page


def test_files_for_the_proxy_and_of_cas_may_lie_in_the_folder_already(both: Operators) -> None:
    """As they must in a container, which sees that folder alone."""
    out = both.folder / "clinic-1"
    out.mkdir()
    credentials, authority = out / "proxy-credentials", out / "hospital-ca.pem"
    credentials.write_text("ward:secret")
    authority.write_text("a CA")
    wanted = Wanted(100, both.folder, authority, "http://proxy:3128", credentials)
    pair = both.invite("clinic-1")
    (out / "other").write_text("mine")
    with pytest.raises(ConfigurationError, match="holds files already; nothing was changed"):
        join(pair, wanted, out, both.send, both.clock)
    (out / "other").unlink()
    joined = join(pair, wanted, out, both.send, both.clock)
    table = tomllib.loads((out / "settings.toml").read_text())
    assert (table["proxy"], table["proxy_credentials"]) == ("http://proxy:3128", "proxy-credentials")
    assert (out / "ca.pem").read_text().endswith("a CA")
    elsewhere = both.folder / "proxy.txt"
    elsewhere.write_text("ward:secret")
    named = Wanted(100, both.folder, None, "http://proxy:3128", elsewhere)
    other = join(both.invite("clinic-2"), named, both.folder / "clinic-2", both.send, both.clock)
    assert tomllib.loads((other.folder / "settings.toml").read_text())["proxy_credentials"] == str(elsewhere)
    assert joined.party.name == "clinic-1"


def test_no_secret_of_an_invitation_is_kept_anywhere(both: Operators) -> None:
    pair = both.invite("clinic-1")
    joined = both.joined(pair)
    kept = b"".join(path.read_bytes() for path in joined.folder.iterdir()) + b"".join(files_of(both))
    assert not any(one.secret.encode() in kept for one in pair)
    assert not any(one.secret.encode() in body for one in pair for _, body in both.seen)


def test_the_same_command_again_changes_nothing(both: Operators) -> None:
    pair = both.invite("clinic-1")
    joined, kept = both.joined(pair), files_of(both)
    both.clock.now_s += 2 * HOUR_S  # the invitations have ended; what was registered stays
    assert both.joined(pair).party == joined.party
    assert files_of(both) == kept


def test_a_try_that_broke_off_goes_on_with_the_same_keys(both: Operators) -> None:
    pair = both.invite("clinic-1")
    way = both.send

    def b_is_away(url: str, path: str, body: bytes, most_bytes: int) -> tuple[int, bytes]:
        if body and url.startswith("https://b."):
            raise Unavailable(f"{url}: nothing answers")
        return way(url, path, body, most_bytes)

    out = both.folder / "clinic-1"
    with pytest.raises(Unavailable):
        join(pair, Wanted(100, both.folder), out, b_is_away, both.clock)
    made = open_folder(out).party
    assert both.desks[Side.B].register.registrant("clinic-1") is None
    assert both.joined(pair).party == made
    assert all(both.desks[side].register.registrant("clinic-1") is not None for side in Side)


def test_a_full_disk_at_the_site_leaves_nothing(both: Operators, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = both.invite("clinic-1")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("host.output_files.os.fsync", full)
        with pytest.raises(StorageFull, match="nothing was changed: free space on its disk"):
            both.joined(pair)
    assert not list((both.folder / "clinic-1").iterdir())
    assert is_joined(both.joined(pair).folder)


def test_a_full_disk_at_an_operator_is_said_and_the_invitation_stays(both: Operators) -> None:
    pair, said = both.invite("clinic-1"), r"operator-a: no space left for enrolment\.json"
    with full_disk(both.register_file(Side.A), "write_durably"), pytest.raises(StorageFull, match=said):
        both.joined(pair)
    assert both.joined(pair).party == open_folder(both.folder / "clinic-1").party


def test_an_invitation_serves_one_public_card(both: Operators) -> None:
    pair = both.invite("clinic-1")
    both.joined(pair)
    with pytest.raises(ConflictingMessage, match=r"used before, by another public card.*tell the operator by phone"):
        both.joined(pair, folder="thief")
    assert len(both.desks[Side.A].register.registrants) == 1


def test_an_expired_invitation_is_refused_on_both_clocks(both: Operators) -> None:
    pair = both.invite("clinic-1")
    both.clock.now_s += HOUR_S + 600
    with pytest.raises(BadSignature, match="'operator-a' expired 10 minutes ago by this machine's clock: ask for anot"):
        both.joined(pair)
    longer = tuple(one.model_copy(update={"expires_at_s": one.expires_at_s + 10**6}) for one in pair)
    with pytest.raises(BadSignature, match="operator-a: this invitation has expired: ask the operator for another"):
        both.joined((longer[0], longer[1]))


def test_two_of_one_operator_or_of_two_federations_are_refused(both: Operators, tmp_path: Path) -> None:
    a, b = both.invite("clinic-1")
    other_a, _ = both.invite("clinic-1")
    with pytest.raises(ConfigurationError, match="both invitations are of operator 'operator-a', side 'a'"):
        both.joined((a, other_a))
    others = operators(tmp_path / "others", "others")
    with pytest.raises(ConfigurationError, match="two federations, 'clinics' and 'others'"):
        both.joined((a, others.invite("clinic-1")[1]))
    with pytest.raises(ConfigurationError, match="for 'clinic-1' and 'clinic-2': ask for two with the same name"):
        both.joined((a, both.invite("clinic-2")[1]))
    with pytest.raises(ConfigurationError, match="'clinic-1' and 'clinic-1' as the requester"):
        both.joined((a, both.invite("clinic-1", requester=True)[1]))
    with pytest.raises(ConfigurationError, match="whoever runs that machine sees both halves"):
        both.joined((a, b.model_copy(update={"url": a.url})))
    assert not (both.folder / "clinic-1").exists()


def test_the_order_of_the_invitations_does_not_matter(both: Operators) -> None:
    a, b = both.invite("clinic-1")
    assert [card.side for card in both.joined((b, a)).cards] == [Side.A, Side.B]


def test_a_name_is_one_sites(both: Operators) -> None:
    pair, again = both.invite("clinic-1"), both.invite("clinic-1")
    both.joined(pair)
    with pytest.raises(ConflictingMessage, match="the name 'clinic-1' is taken here, by another public card"):
        both.joined(again, folder="another")
    with pytest.raises(ConfigurationError, match="has registered here already: name the new one otherwise"):
        both.invite("clinic-1")
    operators_name = both.invite("operator-b")
    with pytest.raises(ConflictingMessage, match="the name 'operator-b' is taken in this federation"):
        both.joined(operators_name, folder="b-again")


def test_a_folder_of_another_join_is_left_alone(both: Operators) -> None:
    joined = both.join("clinic-1")
    before = {path.name: path.read_bytes() for path in joined.folder.iterdir()}
    with pytest.raises(ConfigurationError, match="was joined as 'clinic-1' with 100 training examples"):
        both.joined(both.invite("clinic-2"), folder="clinic-1")
    assert {path.name: path.read_bytes() for path in joined.folder.iterdir()} == before
    (both.folder / "mine").mkdir()
    (both.folder / "mine" / "file").write_text("keep")
    with pytest.raises(ConfigurationError, match="holds files already; nothing was changed"):
        both.joined(both.invite("clinic-2"), folder="mine")


def test_another_card_at_the_operators_address_is_found_before_anything_is_sent(both: Operators) -> None:
    pair = both.invite("clinic-1")
    swapped = dump_card(operator_card(Side.A)).encode()
    both.on_the_way = lambda what, body: swapped if what == "card" else body
    with pytest.raises(ConfigurationError, match=r"shows another card than that of the operator.*nothing was sent"):
        both.joined(pair)
    assert not both.seen
    assert not (both.folder / "clinic-1").exists()


def test_an_invitation_that_contradicts_its_card_is_refused(both: Operators) -> None:
    a, b = both.invite("clinic-1")
    with pytest.raises(ConfigurationError, match="the invitation of 'mallory' and its card disagree"):
        both.joined((a.model_copy(update={"operator": "mallory"}), b))


def test_what_a_proxy_alters_is_taken_by_nobody(both: Operators) -> None:
    pair = both.invite("clinic-1")
    for changed in ("question", "answer"):

        def flipped(what: str, body: bytes, changed: str = changed) -> bytes:
            return body[:-1] + bytes([body[-1] ^ 1]) if what == changed else body

        both.on_the_way = flipped
        with pytest.raises(Unavailable, match=r"unsigned|somebody on the way changed it; nothing was taken from it"):
            both.joined(pair)
        if changed == "question":
            assert not both.desks[Side.A].register.registrants
    both.on_the_way = lambda _, body: body
    assert is_joined(both.joined(pair).folder)


def test_a_replayed_registration_changes_nothing_and_after_a_minute_not_even_answers(both: Operators) -> None:
    both.join("clinic-1")
    kept = files_of(both)
    for _, body in both.seen[:1]:
        assert both.desks[Side.A].answer(body)
    both.clock.now_s += 61
    for _, body in both.seen[:1]:
        both.desks[Side.A].answer(body)  # a refusal, sealed to the site alone
    assert files_of(both) == kept


def test_a_site_registers_itself(both: Operators) -> None:
    (a, _), desk = both.invite("clinic-1"), both.desks[Side.A]
    registration = Registration(secret=a.secret, party=party_keys("clinic-1").party(samples=5))
    asked = Asked(
        federation="clinics", to=desk.card.digest(), name="clinic-2", at_s=int(both.clock()), question=registration
    )
    with pytest.raises(BadSignature, match="a site registers itself"):
        desk.answer(close_asked(asked, party_keys("clinic-1"), desk.card))
    assert not desk.register.registrants


def test_keys_serve_one_site(both: Operators) -> None:
    joined = both.join("clinic-1")
    register = both.desks[Side.A].register
    stolen = joined.party.model_copy(update={"name": "clinic-2", "signing_key": "11" * 32})
    a, _ = both.invite("clinic-2")
    with pytest.raises(ConflictingMessage, match="another site has registered with these keys"):
        register.register(Registration(secret=a.secret, party=stolen))


def test_a_site_that_was_withdrawn_is_told(both: Operators) -> None:
    joined = both.join("clinic-1")
    assert both.desks[Side.A].register.withdraw("clinic-1", ()) == "1 invitations and 1 registrations"
    with pytest.raises(Unavailable, match="has not registered here: run 'moiety site join' first"):
        both.look(joined)
    with pytest.raises(ConfigurationError, match="has no invitation here and did not register"):
        both.desks[Side.A].register.withdraw("clinic-1", ())
    with pytest.raises(ConfigurationError, match="lets it be removed"):
        both.desks[Side.B].register.withdraw("clinic-1", ("clinic-1",))


def test_a_damaged_register_is_named(both: Operators) -> None:
    both.register_file(Side.A).write_text("{")
    with pytest.raises(ConfigurationError, match="cannot be read: restore it from a backup"):
        both.invite("clinic-1")


def test_an_open_question_to_a_server_without_a_card_says_so(both: Operators) -> None:
    pair = both.invite("clinic-1")

    def nobody(url: str, path: str, body: bytes, most_bytes: int) -> tuple[int, bytes]:
        return 404, b"no"

    with pytest.raises(Unavailable, match=r"shows no card \(status 404\): is the server of 'operator-a' running"):
        join(pair, Wanted(100, both.folder), both.folder / "x", nobody, both.clock)
