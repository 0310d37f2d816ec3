"""Word that a study waits: over a real webhook and real mail, signed, tried again, never in the way, nothing in it."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from email import message_from_bytes, policy
from pathlib import Path

import pytest
import stamina
import trustme
from typer.testing import CliRunner

from client_agent.cli.agent import app
from client_agent.net.contacts import Contact, read_notes
from client_agent.net.ledger import Ledger, read_ledger
from client_agent.settings import AgentSettings, load_settings
from client_agent.site.notifications import NOTICES, PURPOSE, SIGNATURE, NotDelivered, Notice, Notices, Sent, ways_of
from harness.federation.processes import write_secret
from protocol.errors import ConfigurationError
from tests.kit.receivers import smtp_receiver, webhook_receiver
from tests.kit.web_proxy import tunnelling_proxy
from tests.unit.client_agent.benches import until
from tests.unit.client_agent.test_page import STUDY, config

assert config  # a fixture of that module
NOTICE = Notice(site="c1", federation="clinics", study="heart", study_digest="ab" * 32, since_s=1_700_000_000)
NOTHING_MORE = {"event", "site", "federation", "study", "study_digest", "since_s", "what_to_do"}


@pytest.fixture(autouse=True)
def without_pauses() -> Iterator[None]:
    """Tries follow one on another; their number is the agent's own."""
    stamina.set_testing(True, attempts=3)
    yield
    stamina.set_testing(False)


@pytest.fixture
def ca(tmp_path: Path) -> trustme.CA:
    made = trustme.CA()
    made.cert_pem.write_to_path(str(tmp_path / "notify-ca.pem"))
    write_secret(tmp_path / "hook.key", "a key that the receiver knows\n")
    write_secret(tmp_path / "smtp.login", "moiety:s3cret\n")
    return made


@pytest.fixture
def ledger(config: Path) -> Iterator[Ledger]:  # the fixture of that name
    made = Ledger(config.parent / "ledger.jsonl")
    yield made
    made.close()


def settings(config: Path, **notify: object) -> AgentSettings:
    """The site's, with a [notify] table."""
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in {"ca": "notify-ca.pem", **notify}.items())
    before = config.read_text().split("\n[notify]")[0]
    config.write_text(f"{before}\n[notify]\n{lines}\n")
    return load_settings(config)


def by_webhook(url: str) -> dict[str, object]:
    return {"webhook": url, "webhook_secret": "hook.key"}


def by_mail(port: int) -> dict[str, object]:
    return {
        "mail_to": ["dpo@hospital.example", "it@hospital.example"],
        "mail_from": "moiety@hospital.example",
        "smtp_host": f"127.0.0.1:{port}",
        "smtp_credentials": "smtp.login",
    }


def delivered(state_dir: Path, ways: int) -> bool:
    return sum(one.delivered_at_s is not None for one in read_notes(state_dir / NOTICES, Sent)) == ways


def test_a_webhook_gets_a_signed_notice_and_its_bytes_are_in_the_ledger(
    config: Path, ca: trustme.CA, ledger: Ledger
) -> None:
    with webhook_receiver(ca) as hook:
        own = settings(config, **by_webhook(hook.url))
        ways_of(own, ledger)["webhook"](NOTICE)
        ledger.close()
    ((body, headers),) = hook.taken
    key = b"a key that the receiver knows"
    assert headers[SIGNATURE] == "sha256=" + hmac.new(key, body, hashlib.sha256).hexdigest()
    told = json.loads(body)
    assert set(told) == NOTHING_MORE
    assert (told["event"], told["study"], told["site"]) == ("study_waits", "heart", "c1")
    assert "moiety agent approve heart" in told["what_to_do"]
    entries = read_ledger(config.parent / "ledger.jsonl")
    assert {one.server for one in entries} == {PURPOSE}
    assert sum(one.socket_sent_bytes for one in entries) > len(body)


def test_a_webhook_goes_through_the_sites_proxy(config: Path, ca: trustme.CA, ledger: Ledger) -> None:
    with webhook_receiver(ca) as hook, tunnelling_proxy() as proxy:
        text = config.read_text()
        config.write_text(f'proxy = "{proxy.url}"\n{text}')
        ways_of(settings(config, **by_webhook(hook.url)), ledger)["webhook"](NOTICE)
        assert len(hook.taken) == 1
        assert proxy.asked


def test_mail_goes_under_tls_with_a_login(config: Path, ca: trustme.CA, ledger: Ledger) -> None:
    with smtp_receiver(ca, login=("moiety", "s3cret")) as box:
        ways_of(settings(config, **by_mail(box.port)), ledger)["mail"](NOTICE)
    (taken,) = box.taken
    assert (taken.under_tls, taken.user, len(taken.to)) == (True, "moiety", 2)
    message = message_from_bytes(taken.message, policy=policy.default)
    assert message["Subject"] == "Moiety: study heart waits for a person at c1"
    text = message.get_content()
    assert "federation clinics" in text
    assert "moiety agent approve heart" in text


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("password", "does not take the user and password"),
        ("refused", "the mail server refuses"),
        ("nobody", "the mail server is out of reach"),
        ("certificate", "the mail server is out of reach"),
    ],
)
def test_what_keeps_mail_is_said_without_a_secret(
    config: Path, ca: trustme.CA, ledger: Ledger, wrong: str, said: str
) -> None:
    with smtp_receiver(ca, login=("moiety", "other" if wrong == "password" else "s3cret")) as box:
        box.refuses = "550 not here" if wrong == "refused" else ""
        if wrong == "certificate":
            trustme.CA().cert_pem.write_to_path(str(config.parent / "notify-ca.pem"))
        port = 1 if wrong == "nobody" else box.port
        way = ways_of(settings(config, **by_mail(port)), ledger)["mail"]
        with pytest.raises(NotDelivered) as caught:
            way(NOTICE)
    assert said in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert not box.taken


def test_what_fails_is_tried_again_shown_and_sent_once(config: Path, ca: trustme.CA, ledger: Ledger) -> None:
    """Three tries, then it is on the page and in the status; the next start of the agent delivers it."""
    digest = NOTICE.model_copy(update={"study": STUDY.name, "study_digest": STUDY.digest()})
    with webhook_receiver(ca) as hook:
        hook.status = 500
        own = settings(config, **by_webhook(hook.url))
        ways = ways_of(own, ledger)
        Notices(own.state_dir, ways, lambda: 1000.0).tell(digest)
        until(lambda: len(hook.taken) == 3)
        until(lambda: bool(read_notes(own.state_dir / NOTICES, Sent)))
        shown = CliRunner().invoke(app, ["status", "--config", str(config)]).stdout
        assert "by webhook not delivered since 1970-01-01 00:16:40 UTC: the webhook answered 500" in shown
        hook.status = 200
        again = Notices(own.state_dir, ways, lambda: 2000.0)
        again.tell(digest)
        until(lambda: delivered(own.state_dir, 1))
        again.tell(digest)
        Notices(own.state_dir, ways, lambda: 3000.0).tell(digest)
        Notices(own.state_dir, ways, lambda: 3000.0).tell(NOTICE)
        until(lambda: len(hook.taken) == 5)
        assert [json.loads(body)["study"] for body, _ in hook.taken] == [STUDY.name] * 4 + ["heart"]
        assert "not delivered" not in CliRunner().invoke(app, ["status", "--config", str(config)]).stdout


def test_telling_waits_for_nothing_and_one_way_for_no_other(tmp_path: Path) -> None:
    held, went, waited = threading.Event(), threading.Event(), list[bool]()

    def hangs(_: Notice) -> None:
        waited.append(held.wait(60))

    def breaks(_: Notice) -> None:
        raise RuntimeError("a bug")

    notices = Notices(tmp_path, {"hangs": hangs, "breaks": breaks, "goes": lambda _: went.set()}, lambda: 1.0)
    for _ in range(20):
        notices.tell(NOTICE)
    assert went.wait(60)
    assert waited == []  # the way that hangs is not over yet
    until(
        lambda: any(
            one.way == "breaks" and "nobody expected" in one.failure for one in read_notes(tmp_path / NOTICES, Sent)
        )
    )
    held.set()
    Notices(tmp_path / "none", {}, lambda: 1.0).tell(NOTICE)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"webhook": "http://x.example", "webhook_secret": "hook.key"}, "webhook must be an https:// address"),
        ({"webhook": "https://me@x.example", "webhook_secret": "hook.key"}, "webhook must be an https:// address"),
        ({"webhook": "https://x.example"}, "a webhook needs webhook_secret"),
        ({"mail_to": ["a@b.example"]}, "mail_to needs smtp_host and mail_from"),
        ({"mail_to": ["a@b.example\nBcc: c@d.example"]}, "notify.mail_to"),
        ({"smtp_host": "mail.example:port"}, "smtp_host is HOST or HOST:PORT"),
        ({"smtp_starttls": False}, "mail goes under STARTTLS alone"),
        ({"webhok": "https://x.example"}, "webhok"),
    ],
)
def test_a_wrong_table_is_refused_at_the_start(
    config: Path, ca: trustme.CA, table: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings(config, **table)
    assert said in caught.value.detail


def test_secrets_that_others_may_read_are_refused(config: Path, ca: trustme.CA, ledger: Ledger) -> None:
    (config.parent / "hook.key").chmod(0o644)
    own = settings(config, **by_webhook("https://x.example"))
    with pytest.raises(ConfigurationError, match=r"key 'notify.webhook_secret': .*chmod 600"):
        ways_of(own, ledger)


@pytest.mark.parametrize(
    "content", [b"", b"no JSON", b"{}", b"[1]", b"[" * 200_000, b'[{"server": "\\ud800"}]', b'[{"x": 1}]']
)
def test_notes_that_cannot_be_read_are_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "contacts.json").write_bytes(content)
    assert read_notes(tmp_path / "contacts.json", Contact) == ()
