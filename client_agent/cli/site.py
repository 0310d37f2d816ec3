"""``moiety site``: a site's way into a federation, and the requester's part in founding it."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from client_agent.cli.tables import ConfigOption, JsonOption
from client_agent.joining import founding
from client_agent.joining.folder import SETTINGS, Joined, Wanted, open_folder
from client_agent.joining.operators import Together, Way, look
from client_agent.joining.operators import join as join_both
from client_agent.settings import load_settings
from host.command_line import command
from host.files import UMASK, read_secret
from host.network import WebProxy
from host.settings import read_text
from protocol.errors import ConfigurationError, Unavailable
from protocol.roster.enrolment import PREFIX, Invitation, fingerprint_of, read_invitation
from protocol.text import counted

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
InvitationArgument = Annotated[
    str, typer.Argument(metavar="INVITATION", help="The line that an operator sent, or a file with it.")
]
_ASK_EVERY_S: Final = 5.0
_LONGEST_PATH: Final = 1000


@app.callback()
def _site() -> None:
    """Join a federation, see how that stands, and found it."""


@dataclass(frozen=True)
class _Join:
    """Make this site's keys and register at both operators; again, with the same folder, after any failure."""

    first: InvitationArgument
    second: InvitationArgument
    samples: Annotated[int, typer.Option(min=1, help="How many training examples this site has.")]
    data: Annotated[Path, typer.Option(help="The data folder that 'moiety data prepare' made, or will make.")]
    out: Annotated[Path, typer.Option(help="The folder to make; the same one for another try.")]
    ca: Annotated[Path | None, typer.Option(help="CAs in PEM, where an operator's is a public one.")] = None
    proxy: Annotated[str | None, typer.Option(help="http://HOST:PORT, the way to both servers.")] = None
    proxy_credentials: Annotated[Path | None, typer.Option(help="A file with user:password for it.")] = None
    state: Annotated[Path | None, typer.Option(help="The state folder of before, for a site that renews its keys.")] = (
        None
    )
    json_output: JsonOption = False


def _join(asked: _Join) -> None:
    os.umask(UMASK)
    pair = _invitation(asked.first), _invitation(asked.second)
    credentials = asked.proxy_credentials
    told = None if credentials is None else read_secret(credentials).strip()
    way = Way(None if asked.proxy is None else WebProxy.parse(asked.proxy, told))
    wanted = Wanted(asked.samples, asked.data, asked.ca, asked.proxy, credentials, asked.state)
    _show_fingerprint(join_both(pair, wanted, asked.out, way), json_output=asked.json_output)


app.command()(command(_Join, _join))


@app.command()
def fingerprint(config: ConfigOption, json_output: JsonOption = False) -> None:
    """This site's fingerprint, to be read to both operators and to the requester over the phone."""
    _show_fingerprint(open_folder(Path(os.path.realpath(config)).parent), json_output=json_output)


@app.command()
def status(
    config: ConfigOption,
    wait: Annotated[bool, typer.Option("--wait", help="Until the roster is here; Ctrl-C ends it.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Show this site's state at both operators; takes the roster as soon as both have it, signed by all."""
    os.umask(UMASK)
    joined, way = _opened(config)
    together, said = _looked(joined, way, wait=wait)
    while True:
        if not json_output:
            sys.stdout.write(said)
            sys.stdout.flush()
        if not wait or (together is not None and together.roster is not None):
            break
        before = said
        while said == before:
            time.sleep(_ASK_EVERY_S)
            together, said = _looked(joined, way, wait=wait)
    if json_output and together is not None:
        admitted = [one.admitted for one in together.standings]
        here = together.roster is not None
        sys.stdout.write(json.dumps({"admitted": admitted, "waits_for": together.waits_for, "roster": here}) + "\n")


@app.command()
def admissions(config: ConfigOption, json_output: JsonOption = False) -> None:
    """At the requester: who registered, and what each still lacks to be in the roster."""
    joined, way = _opened(config)
    found = founding.candidates(joined, look(joined, way))
    if json_output:
        sys.stdout.write(json.dumps([{"name": one.name, "lacks": one.lacks} for one in found]) + "\n")
        return
    for one in found:
        samples = "" if one.party is None else f", {counted(one.party.samples, 'training example')}"
        sys.stdout.write(f"{one.name}{samples}: {'; '.join(one.lacks) or 'admitted everywhere'}\n")
    if not found:
        sys.stdout.write("nothing is shown: this is for the requester, once both operators have admitted it\n")


@app.command()
def admit(
    name: Annotated[str, typer.Argument(help="The site's name.")],
    fingerprint: Annotated[str, typer.Option(help="As the site's people read it over the phone.")],
    config: ConfigOption,
) -> None:
    """At the requester: let a site into the roster to come, if its card is the one that was read over the phone."""
    os.umask(UMASK)
    joined, way = _opened(config)
    founding.admit(joined, look(joined, way), name, fingerprint)
    sys.stdout.write(f"{name}: admitted here\n")


@app.command()
def found(
    config: ConfigOption,
    without: Annotated[list[str] | None, typer.Option(help="Leave this site out; may be repeated.")] = None,
) -> None:
    """At the requester: sign the first roster, have both operators sign it, and put it in place everywhere."""
    os.umask(UMASK)
    joined, way = _opened(config)
    roster = founding.found(joined, way, without or ()).message
    names = ", ".join(site.name for site in roster.sites)
    sys.stdout.write(f"founded: {roster.federation} with {names}; roster {roster.digest()}\n")
    sys.stdout.write("the sites take it with: moiety site status --config THEIR/settings.toml\n")


@app.command()
def add(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Sites that joined, or renewed their keys.")],
    reason: Annotated[str, typer.Option(help="Why, in a line; it is signed and shown to everybody.")],
    config: ConfigOption,
) -> None:
    """At the requester: have a change of the roster signed that adds these sites, or their renewed keys."""
    os.umask(UMASK)
    joined, way = _opened(config)
    chain = founding.add(joined, names, reason, way)
    sys.stdout.write(f"change {chain.number} of the roster is in place at both operators: {chain.head_digest}\n")
    sys.stdout.write("these sites take it with: moiety site status --config THEIR/settings.toml\n")


@app.command()
def remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Sites of the roster, without the requester.")],
    reason: Annotated[str, typer.Option(help="Why, in a line; it is signed and shown to everybody.")],
    config: ConfigOption,
) -> None:
    """At the requester: have a change of the roster signed that removes these sites, and put it in place everywhere."""
    os.umask(UMASK)
    joined, way = _opened(config)
    chain = founding.remove(joined, names, reason, way)
    sys.stdout.write(f"change {chain.number} of the roster is in place at both operators: {chain.head_digest}\n")
    sys.stdout.write("within seconds both servers refuse whoever was removed; names and keys never come back\n")


def _invitation(told: str) -> Invitation:
    """A line, or a file with it: other users of this machine see a command's words while it runs."""
    short = "\n" not in told and len(told) < _LONGEST_PATH
    path = Path(told) if short and not told.startswith(PREFIX) else None
    if path is not None and not path.is_file() and path.suffix:
        raise ConfigurationError(
            f"{path}: there is no such file, and it is no invitation, which begins with {PREFIX!r}"
        )
    return read_invitation(read_text(path) if path is not None and path.is_file() else told)


def _opened(config: Path) -> tuple[Joined, Way]:
    return open_folder(Path(os.path.realpath(config)).parent), Way(load_settings(config).web_proxy)


def _looked(joined: Joined, way: Way, *, wait: bool) -> tuple[Together | None, str]:
    """Return the text for people, with both answers; None when one could not be reached and it is tried again."""
    try:
        together = look(joined, way)
    except Unavailable as away:
        if not wait:
            raise
        return None, f"{away.detail}\n"
    if together.roster is not None:
        config = joined.folder / SETTINGS
        return together, f"{joined.roster} is here, signed by all. Start: moiety agent run --config {config}\n"
    return together, "".join(f"waits for: {what}\n" for what in together.waits_for)


def _show_fingerprint(joined: Joined, *, json_output: bool) -> None:
    digits = fingerprint_of(joined.party)
    theirs = {card.party.name: fingerprint_of(card) for card in joined.cards}
    if json_output:
        shown = {
            "site": joined.party.name,
            "fingerprint": digits,
            "settings": str(joined.folder / SETTINGS),
            "operators": theirs,
        }
        sys.stdout.write(json.dumps(shown) + "\n")
        return
    operators = " and ".join(card.party.name for card in joined.cards)
    sys.stdout.write(
        f"{joined.party.name} is registered at {operators} ({joined.folder}). Read this to both of them and to the "
        f"requester, each over the phone:\n\n    {digits}\n\n"
        "and have both operators read you theirs, which came with the invitations:\n\n"
        + "".join(f"    {name}: {read}\n" for name, read in theirs.items())
        + "\n"
        f"Then: moiety site status --wait --config {joined.folder / SETTINGS}\n"
    )
