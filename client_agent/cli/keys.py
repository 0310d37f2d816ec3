"""``moiety keys``: make a party's keys, and show a roster with who has signed it.

A secret key file stays on the machine where it was made.
"""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from client_agent.cli.roster import chain_summary, read_chain, show_links
from client_agent.cli.tables import JsonOption, console, plain
from host.output_files import write_new
from protocol.channel.keys import SEALING_KEY_BYTES, SIGNING_KEY_BYTES, generate_sealing_key, generate_signing_key
from protocol.configuration import explain
from protocol.errors import BadSignature, ConfigurationError, MalformedMessage, MoietyError
from protocol.messages.control import Party, Role, Roster, Signed, check_signature, require_roster
from protocol.roster.keyfile import PartyKeys, dump_party, dump_party_keys

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
RosterArgument = Annotated[Path, typer.Argument(metavar="ROSTER.TOML", help="The roster file.")]


@app.callback()
def _keys() -> None:
    """Make keys, and show who has signed a roster."""


@app.command()
def new(
    name: Annotated[str, typer.Option(help="The party's name: lower-case letters, digits, '-'.")],
    role: Annotated[Role, typer.Option(help="operator or site.")],
    out: Annotated[Path, typer.Option(help="Folder for NAME.secret.toml and NAME.public.toml.")],
    url: Annotated[str | None, typer.Option(help="An operator's https address, as agents reach it.")] = None,
    samples: Annotated[int | None, typer.Option(help="A site's number of training examples.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Make a party's two key pairs."""
    _require_role_options(role, url, samples)
    keys = PartyKeys(
        name=name,
        role=role,
        signing=generate_signing_key(secrets.token_bytes(SIGNING_KEY_BYTES)),
        sealing=generate_sealing_key(secrets.token_bytes(SEALING_KEY_BYTES)),
    )
    try:
        party = Party.parse(
            json.dumps(keys.party().model_dump(mode="json") | {"url": url, "samples": samples}).encode()
        )
    except MalformedMessage as wrong:
        raise ConfigurationError(wrong.detail) from None
    except ValidationError as wrong:
        raise ConfigurationError(f"option --name (lower-case letters, digits, '-'): {explain(Party, wrong)}") from None
    secret, public = out / f"{name}.secret.toml", out / f"{name}.public.toml"
    out.mkdir(parents=True, exist_ok=True)
    write_new((secret, dump_party_keys(keys), 0o600), (public, dump_party(party), 0o644))
    if json_output:
        _print({"name": name, "secret": str(secret), "public": str(public)})
    else:
        sys.stdout.write(f"{secret}: keep it on this machine\n{public}: its public half\n")


@app.command()
def show(roster_file: RosterArgument, json_output: JsonOption = False) -> None:
    """Show a roster's parties, its digest, and who has signed it."""
    chain = read_chain(roster_file)
    signed = chain.first
    if json_output:
        _print(_summary(signed) | ({"chain": chain_summary(chain)} if chain.changes else {}))
        return
    for party in chain.head.parties:
        _print_party(signed, party)
    console().print(f"federation {signed.message.federation}, requester {signed.message.requester}")
    console().print(f"digest {signed.message.digest()}")
    console().print("complete" if _complete(signed) else "not complete: both operators and the requester must sign")
    if chain.changes:
        show_links(chain)


def _print_party(signed: Signed[Roster], party: Party) -> None:
    """All of what has to be compared, on lines of any length: a terminal's width cuts nothing off."""
    came = signed.message.party(party.name) or party
    lines = [f"{party.name}: {party.role.value}"]
    lines += [f"  address      {party.url}"] if party.url else []
    lines += [f"  samples      {party.samples}"] if party.samples is not None else []
    lines += [f"  signing key  {party.signing_key}", f"  signature    {_standing(signed, came) or 'none'}"]
    for line in lines:
        console().print(plain(line), soft_wrap=True)


def _require_role_options(role: Role, url: str | None, samples: int | None) -> None:
    if role is Role.OPERATOR and (url is None or samples is not None):
        raise ConfigurationError("an operator needs --url, and takes no --samples")
    if role is Role.SITE and (samples is None or url is not None):
        raise ConfigurationError("a site needs --samples, and takes no --url")


def _summary(signed: Signed[Roster]) -> dict[str, Any]:
    return {
        "federation": signed.message.federation,
        "requester": signed.message.requester,
        "digest": signed.message.digest(),
        "parties": [party.name for party in signed.message.parties],
        "signatures": {p.name: _standing(signed, p) for p in signed.message.parties if signed.signature_of(p.name)},
        "complete": _complete(signed),
    }


def _standing(signed: Signed[Roster], party: Party) -> str:
    signature = signed.signature_of(party.name)
    if signature is None:
        return ""
    try:
        check_signature(signed.message, signature, party)
    except BadSignature:
        return "not valid"
    return "valid"


def _complete(signed: Signed[Roster]) -> bool:
    try:
        require_roster(signed)
    except MoietyError:
        return False
    return True


def _print(values: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
