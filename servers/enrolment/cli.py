"""`moiety server init`, `pair`, `renew`: a server from nothing, and the other operator's card.

`invite`, `admissions`, `admit`, `remove`: who may come, came and goes.
"""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from protocol.errors import ConfigurationError
from protocol.sharing import Side
from protocol.text import counted

if TYPE_CHECKING:
    from servers.enrolment.register import Register
    from servers.settings import ServerSettings

app = typer.Typer(help="Run one of the two servers.", no_args_is_help=True)
ConfigOption = Annotated[Path, typer.Option("--config", help="The server's settings file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]


@app.command()
def init(
    side: Annotated[Side, typer.Option(help="a or b: the operators agree which of them is which.")],
    federation: Annotated[str, typer.Option(help="The federation's name, the same at both operators.")],
    name: Annotated[str, typer.Option(help="This operator's name: lower-case letters, digits, '-'.")],
    url: Annotated[str, typer.Option(help="https://HOST or https://HOST:PORT, as sites reach this server.")],
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    peer_url: Annotated[str | None, typer.Option(help="The other server's, if known; its card says it too.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="To listen on; without it the one in --url.")] = (
        None
    ),
    own_ca: Annotated[bool, typer.Option("--own-ca", help="Make a CA for this host, and its certificate.")] = False,
    tls_certificate: Annotated[Path | None, typer.Option(help="A certificate chain that is there already.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Make a new server's folder, all of it or nothing.

    It holds keys, public card, settings and a compose file.

    Example: moiety server init --side a --federation clinics --name operator-a --url https://a.example.org --out a
    """
    from protocol.roster.enrolment import fingerprint_of
    from servers.enrolment.folder import NewServer, make_folder, next_steps

    new = NewServer(side, federation, name, url, peer_url, port, own_ca, tls_certificate, tls_key)
    card = make_folder(new, out)
    fingerprint = fingerprint_of(card)
    if json_output:
        typer.echo(json.dumps({"folder": str(out), "card": str(out / new.card), "fingerprint": fingerprint}))
        return
    typer.echo(next_steps(out, new, fingerprint), nl=False)


@app.command()
def pair(
    card: Annotated[
        str, typer.Argument(metavar="CARD", help="The other operator's card: a file, or its https address.")
    ],
    fingerprint: Annotated[str, typer.Option(help="As the other operator reads it over the phone.")],
    config: ConfigOption,
) -> None:
    """Pair with the other operator by its public card.

    The card is kept if its fingerprint is the one that was read over the phone.

    Example: moiety server pair https://b.example.org --fingerprint "12345 67890 ..." --config a/settings.toml
    """
    from servers.enrolment import pairing
    from servers.settings import load_settings

    kept = pairing.pair(load_settings(config), pairing.read_card(card), fingerprint)
    typer.echo(
        f"paired with {kept.party.name}, side {kept.side.value}, at {kept.url}. Start the server, if it does not "
        "run yet; then invite the requester and the sites (docs/enrolling.md)"
    )


@app.command()
def renew(config: ConfigOption) -> None:
    """Renew the certificate, by the CA that 'init --own-ca' made.

    A running server takes it up by itself.

    Example: moiety server renew --config a/settings.toml
    """
    from servers.enrolment.folder import renew as renew_certificate
    from servers.settings import load_settings

    settings = load_settings(config)
    until = renew_certificate(settings.tls_certificate.parent, settings.public_url)
    typer.echo(f"{settings.tls_certificate}: a new certificate until {until:%Y-%m-%d}")


SiteArgument = Annotated[str, typer.Argument(metavar="NAME", help="The site's name in the federation.")]
_LIFETIME: Final = re.compile(r"([1-9]\d{0,3})([mhd])")
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86400}
_MOST_DAYS: Final = 30


@app.command()
def invite(
    name: SiteArgument,
    config: ConfigOption,
    ttl: Annotated[str, typer.Option(help="How long it is good for: 30m, 48h, 7d; at most 30d.")] = "48h",
    requester: Annotated[
        bool, typer.Option("--requester", help="For the site for which models are made; there is one.")
    ] = False,
    renew: Annotated[
        bool, typer.Option("--renew", help="For other keys of a site in the roster: its own are lost, stolen or old.")
    ] = False,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Take its invitations and registration back; a roster keeps its sites.")
    ] = False,
) -> None:
    """Invite a site: print a line, once, to be sent to its people.

    Send it by a way that you trust. What is printed is not kept.

    Example: moiety server invite clinic-1 --ttl 7d --config a/settings.toml
    """
    from protocol.roster.enrolment import invitation_line
    from servers.enrolment.pairing import own_card
    from servers.enrolment.register import end_renewals, names_in_place

    settings, register = _register(config)
    if withdraw:
        end_renewals(settings, register)
        typer.echo(f"{name}: withdrawn: {register.withdraw(name, names_in_place(settings))}")
        return
    card, _ = own_card(settings)
    if renew:
        _require_contributor(settings, name)
    elif name in names_in_place(settings):
        raise ConfigurationError(
            f"{name!r} is or was in this federation's roster: a new site needs another name; other keys of a site that "
            f"is in it: --renew"
        )
    invitation = register.invite(card, name, _lifetime_s(ttl), requester=requester and not renew, renews=renew)
    until = f"{datetime.fromtimestamp(invitation.expires_at_s, UTC):%Y-%m-%d %H:%M} UTC"
    typer.echo(f"good once, for {name}{' as the requester' if requester else ''}, until {until}:", err=True)
    typer.echo(invitation_line(invitation))


@app.command()
def admissions(config: ConfigOption, json_output: JsonOption = False) -> None:
    """List whom this operator invited, who registered, and who is admitted.

    An invitation is open, used or expired; a registration waits until its fingerprint was compared over the phone.

    Example: moiety server admissions --config a/settings.toml
    """
    now_s, (_, register) = time.time(), _register(config)
    made, found = register.invitations, register.registrants
    if json_output:
        fields = {"site", "requester", "expires_at_s"}
        invited = [one.model_dump(include=fields) | {"is": one.standing(now_s)} for one in made]
        registered = [{"name": one.party.name, "requester": one.requester, "admitted": one.admitted} for one in found]
        typer.echo(json.dumps({"invited": invited, "registered": registered}))
        return
    for invitation in made:
        until = f"{datetime.fromtimestamp(invitation.expires_at_s, UTC):%Y-%m-%d %H:%M} UTC"
        whom = f"{invitation.site}{', the requester' if invitation.requester else ''}"
        typer.echo(f"invitation for {whom}: {invitation.standing(now_s)}, until {until}")
    if not made:
        typer.echo("no invitations: 'moiety server invite NAME' makes one")
    for one in found:
        role = "the requester" if one.requester else counted(one.party.samples, "training example")
        standing = "admitted" if one.admitted else "waits: have its people read its fingerprint to you"
        typer.echo(f"{one.party.name}: {role}, {standing}")
    if not found:
        typer.echo("nobody has registered here yet")


@app.command()
def admit(
    name: SiteArgument,
    fingerprint: Annotated[str, typer.Option(help="As the site's people read it over the phone.")],
    config: ConfigOption,
) -> None:
    """Admit a site whose fingerprint was read over the phone.

    It is in the next roster that both operators and the requester sign.

    Example: moiety server admit clinic-1 --fingerprint "12345 67890 ..." --config a/settings.toml
    """
    from host.audit_log import Action, AuditLog
    from protocol.roster.enrolment import fingerprint_of
    from servers.enrolment.pairing import own_card

    settings, register = _register(config)
    admitted = register.admit(name, fingerprint)
    audit = AuditLog(settings.data_dir, own_card(settings)[1].name)
    audit.add(Action.ADMITTED, f"{name} by its fingerprint {fingerprint_of(admitted.party)}")
    typer.echo(f"{name}: admitted here. The other operator and the requester compare the same digits themselves")


@app.command()
def remove(
    name: SiteArgument,
    config: ConfigOption,
    undo: Annotated[
        bool, typer.Option("--undo", help="It is to stay after all; before the requester removed it.")
    ] = False,
) -> None:
    """Allow the requester to remove a site from the roster.

    The other operator allows it too; then the requester runs 'moiety site remove'.

    Example: moiety server remove clinic-1 --config a/settings.toml
    """
    settings, register = _register(config)
    _require_contributor(settings, name)
    register.let_remove(name, undo=undo)
    if undo:
        typer.echo(f"{name}: stays, as far as this operator is asked")
        return
    typer.echo(
        f"{name}: may be removed, as far as this operator is asked. It stays in the roster until the other operator "
        f"has run the same command, and the requester: moiety site remove {name} --reason '...'"
    )


def _register(config: Path) -> tuple[ServerSettings, Register]:
    """Raises: ConfigurationError"""
    from servers.enrolment.register import Register
    from servers.settings import load_settings

    settings = load_settings(config)
    return settings, Register(settings.data_dir, time.time)


def _lifetime_s(ttl: str) -> float:
    found = _LIFETIME.fullmatch(ttl)
    seconds = 0 if found is None else int(found[1]) * _SECONDS[found[2]]
    if not 0 < seconds <= _MOST_DAYS * _SECONDS["d"]:
        raise ConfigurationError(f"option --ttl: found {ttl!r}; it is 30m, 48h or 7d, at most {_MOST_DAYS}d")
    return float(seconds)


def _require_contributor(settings: ServerSettings, name: str) -> None:
    """Raises: ConfigurationError, for who is no site of the newest roster, and for the requester"""
    from servers.identity.roster import newest_chain

    chain = newest_chain(settings)
    names = () if chain is None else tuple(party.name for party in chain.head.contributors)
    if name not in names:
        listed = ", ".join(names) or "nobody yet"
        raise ConfigurationError(
            f"{name!r} is no contributor of this federation's roster ({listed}); a removed site returns under another "
            "name; one that is not in the roster yet needs a plain 'moiety server invite'; an operator's or the "
            "requester's keys are changed between studies, by a file: 'moiety roster --help'"
        )
