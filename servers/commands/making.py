"""`moiety server init`, `pair`, `card` and `renew`: a server from nothing, and the other operator's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from protocol.sharing import Side

ConfigOption = Annotated[Path, typer.Option("--config", help="the server's settings, a TOML file")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]


@dataclass(frozen=True)
class _Init:
    """Make a new server's folder: keys, public card, settings, compose file. All of it or nothing."""

    side: Annotated[Side, typer.Option(help="a or b: the operators agree which of them is which.")]
    federation: Annotated[str, typer.Option(help="The federation's name, the same at both operators.")]
    name: Annotated[str, typer.Option(help="This operator's name: lower-case letters, digits, '-'.")]
    url: Annotated[str, typer.Option(help="https://HOST or https://HOST:PORT, as sites reach this server.")]
    out: Annotated[Path, typer.Option(help="The folder to make.")]
    peer_url: Annotated[str | None, typer.Option(help="The other server's, if known; its card says it too.")] = None
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="To listen on; without it the one in --url.")] = (
        None
    )
    own_ca: Annotated[bool, typer.Option("--own-ca", help="Make a CA for this host, and its certificate.")] = False
    tls_certificate: Annotated[Path | None, typer.Option(help="A certificate chain that is there already.")] = None
    tls_key: Annotated[Path | None, typer.Option(help="Its private key.")] = None
    json_output: JsonOption = False


def _init(asked: _Init) -> None:
    from protocol.wire.enrolment.fingerprint import fingerprint_of
    from servers.enrolment.folder import NewServer, make_folder
    from servers.enrolment.texts import next_steps

    tls = asked.tls_certificate, asked.tls_key
    new = NewServer(asked.side, asked.federation, asked.name, asked.url, asked.peer_url, asked.port, asked.own_ca, *tls)
    card, told = make_folder(new, asked.out)
    fingerprint = fingerprint_of(card)
    if asked.json_output:
        made = {"folder": str(asked.out), "card": str(asked.out / told.card), "fingerprint": fingerprint}
        typer.echo(json.dumps(made))
        return
    has_certificate = asked.own_ca or asked.tls_certificate is not None
    typer.echo(next_steps(asked.out, told, fingerprint, has_certificate=has_certificate), nl=False)


def card(config: ConfigOption, json_output: JsonOption = False) -> None:
    """This operator's fingerprint, to be read over the phone, and where its public card lies."""
    from protocol.wire.enrolment.fingerprint import fingerprint_of
    from servers.enrolment.pairing import own_card
    from servers.settings import load_settings

    settings = load_settings(config)
    own, _ = own_card(settings)
    if json_output:
        typer.echo(json.dumps({"name": own.party.name, "card": str(settings.card), "fingerprint": fingerprint_of(own)}))
        return
    typer.echo(f"{own.party.name}, side {own.side.value} of {own.federation}, at {own.url}: {settings.card}")
    typer.echo(f"    {fingerprint_of(own)}")


def pair(
    card: Annotated[
        str, typer.Argument(metavar="CARD", help="The other operator's card: a file, or its https address.")
    ],
    fingerprint: Annotated[str, typer.Option(help="As the other operator reads it over the phone.")],
    config: ConfigOption,
) -> None:
    """Keep the other operator's public card, if it is the one whose fingerprint was read over the phone."""
    from servers.enrolment import pairing
    from servers.settings import load_settings

    kept = pairing.pair(load_settings(config), pairing.read_card(card), fingerprint)
    typer.echo(
        f"paired with {kept.party.name}, side {kept.side.value}, at {kept.url}. Start the server, if it does not "
        "run yet; then invite the requester and the sites (docs/enrolling.md)"
    )


def renew(config: ConfigOption) -> None:
    """Another certificate by the CA that 'init --own-ca' made; a running server takes it up by itself."""
    from servers.enrolment.folder import renew as renew_certificate
    from servers.settings import load_settings

    settings = load_settings(config)
    until = renew_certificate(settings.tls_certificate.parent, settings.public_url)
    typer.echo(f"{settings.tls_certificate}: a new certificate until {until:%Y-%m-%d}")
