"""``moiety site``: a site's way into a federation, and the requester's part in founding it.

What a command needs is imported when it runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from client_agent.cli.tables import ConfigOption, JsonOption, answer, json_line, settings_of
from host.files import UMASK
from protocol.errors import ConfigurationError, Unavailable

if TYPE_CHECKING:
    from client_agent.site.enrolment import Together, Way
    from client_agent.site.enrolment_folder import Joined
    from protocol.roster.chain import RosterChain
    from protocol.roster.enrolment import Invitation

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
InvitationArgument = Annotated[
    str, typer.Argument(metavar="INVITATION", help="The line that an operator sent, or a file with it.")
]
NamesArgument = Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of sites.")]
ReasonOption = Annotated[str, typer.Option(help="Why, in a line; it is signed and shown to everybody.")]
_ASK_EVERY_S: Final = 5.0
_LONGEST_PATH: Final = 1000


@app.callback()
def _site() -> None:
    """Join a federation by two invitations; at the requester, found and change it."""
    os.umask(UMASK)


@app.command()
def join(
    first: InvitationArgument,
    second: InvitationArgument,
    samples: Annotated[int, typer.Option(min=1, help="How many training examples this site has.")],
    data: Annotated[Path, typer.Option(help="The data folder that 'moiety data prepare' made, or will make.")],
    out: Annotated[Path, typer.Option(help="The folder to make; the same one for another try.")],
    ca: Annotated[Path | None, typer.Option(help="CAs in PEM, where an operator's is a public one.")] = None,
    proxy: Annotated[str | None, typer.Option(help="http://HOST:PORT, the way to both servers.")] = None,
    proxy_credentials: Annotated[Path | None, typer.Option(help="A file with user:password for it.")] = None,
    state: Annotated[Path | None, typer.Option(help="The state folder of before, for a site that renews its keys.")] = (
        None
    ),
    json_output: JsonOption = False,
) -> None:
    """Join a federation: make keys, and register at both operators.

    After a failure, run it again with the same folder.

    Example: moiety site join INVITATION-A INVITATION-B --samples 412 --data data --out clinic-1
    """
    from client_agent.site import enrolment
    from client_agent.site.enrolment_folder import SETTINGS, Wanted
    from host.files import read_secret
    from host.network import WebProxy

    pair = _invitation(first), _invitation(second)
    told = None if proxy_credentials is None else read_secret(proxy_credentials).strip()
    way = enrolment.Way(None if proxy is None else WebProxy.parse(proxy, told))
    joined = enrolment.join(pair, Wanted(samples, data, ca, proxy, proxy_credentials, state), out, way)
    then = f"Then: moiety site status --wait --config {joined.folder / SETTINGS}"
    answer(_identity(joined), _fingerprints(joined) + then, json_output=json_output)


@app.command()
def status(
    config: ConfigOption,
    wait: Annotated[bool, typer.Option("--wait", help="Ask again until the roster is here; Ctrl-C ends it.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Show fingerprint and state at both operators; take the signed roster.

    The fingerprint is read over the phone, to both operators and to the requester. At the requester: who registered
    too, and what each lacks to be in the roster.

    Example: moiety site status --wait --config clinic-1/settings.toml
    """
    joined, way = _opened(config)
    before = None
    if not json_output:
        _show(_fingerprints(joined))
    while True:
        together, said = _looked(joined, way, wait=wait)
        if said != before and not json_output:
            _show(said)
        if not wait or (together is not None and together.roster is not None):
            break
        before = said
        time.sleep(_ASK_EVERY_S)
    if json_output and together is not None:
        json_line({**_identity(joined), **_standing(joined, together)})


@app.command()
def admit(
    name: Annotated[str, typer.Argument(help="The site's name.")],
    fingerprint: Annotated[str, typer.Option(help="As the site's people read it over the phone.")],
    config: ConfigOption,
) -> None:
    """Admit a site whose fingerprint was read over the phone.

    At the requester; the site is in the next roster that all sign.

    Example: moiety site admit clinic-1 --fingerprint "12345 67890 ..." --config requester/settings.toml
    """
    from client_agent.site import founding
    from client_agent.site.enrolment import look

    joined, way = _opened(config)
    founding.admit(joined, look(joined, way), name, fingerprint)
    sys.stdout.write(f"{name}: admitted here\n")


@app.command()
def found(
    config: ConfigOption,
    without: Annotated[list[str] | None, typer.Option(help="Leave this site out; may be repeated.")] = None,
) -> None:
    """Sign the first roster with both operators, and put it in place.

    At the requester.

    Example: moiety site found --config requester/settings.toml
    """
    from client_agent.site import founding

    roster = founding.found(*_opened(config), without or ()).message
    names = ", ".join(site.name for site in roster.sites)
    sys.stdout.write(f"founded: {roster.federation} with {names}; roster {roster.digest()}\n")
    sys.stdout.write("the sites take it with: moiety site status --config THEIR/settings.toml\n")


@app.command()
def add(names: NamesArgument, reason: ReasonOption, config: ConfigOption) -> None:
    """Add sites that joined, or their renewed keys, to the roster.

    At the requester; both operators sign the change.

    Example: moiety site add clinic-7 --reason "joined in May" --config requester/settings.toml
    """
    from client_agent.site import founding

    joined, way = _opened(config)
    _show_change(founding.add(joined, names, reason, way))
    sys.stdout.write("these sites take it with: moiety site status --config THEIR/settings.toml\n")


@app.command()
def remove(names: NamesArgument, reason: ReasonOption, config: ConfigOption) -> None:
    """Remove sites from the roster; the requester stays.

    At the requester; both operators sign the change.

    Example: moiety site remove clinic-7 --reason "left in June" --config requester/settings.toml
    """
    from client_agent.site import founding

    joined, way = _opened(config)
    _show_change(founding.remove(joined, names, reason, way))
    sys.stdout.write("within seconds both servers refuse whoever was removed; names and keys never come back\n")


def _show_change(chain: RosterChain) -> None:
    sys.stdout.write(f"change {chain.number} of the roster is in place at both operators: {chain.head_digest}\n")


def _invitation(told: str) -> Invitation:
    """A line, or a file with it: other users of this machine see a command's words while it runs."""
    from host.settings import read_text
    from protocol.roster.enrolment import PREFIX, read_invitation

    short = "\n" not in told and len(told) < _LONGEST_PATH
    path = Path(told) if short and not told.startswith(PREFIX) else None
    if path is not None and not path.is_file() and path.suffix:
        raise ConfigurationError(
            f"{path}: there is no such file, and it is no invitation, which begins with {PREFIX!r}"
        )
    return read_invitation(read_text(path) if path is not None and path.is_file() else told)


def _opened(config: Path) -> tuple[Joined, Way]:
    from client_agent.site.enrolment import Way
    from client_agent.site.enrolment_folder import open_folder

    return open_folder(Path(os.path.realpath(config)).parent), Way(settings_of(config).web_proxy)


def _looked(joined: Joined, way: Way, *, wait: bool) -> tuple[Together | None, str]:
    """Return the text for people, with both answers; None when one could not be reached and it is tried again."""
    from client_agent.site.enrolment import look
    from client_agent.site.enrolment_folder import SETTINGS
    from client_agent.site.founding import candidates
    from protocol.text import counted

    try:
        together = look(joined, way)
    except Unavailable as away:
        if not wait:
            raise
        return None, f"{away.detail}\n"
    lines = []
    for one in candidates(joined, together):
        samples = "" if one.party is None else f", {counted(one.party.samples, 'training example')}"
        lines.append(f"{one.name}{samples}: {'; '.join(one.lacks) or 'admitted everywhere'}")
    if together.roster is not None:
        config = joined.folder / SETTINGS
        lines.append(f"{joined.roster} is here, signed by all. Start: moiety agent run --config {config}")
    else:
        lines += [f"waits for: {what}" for what in together.waits_for]
    return together, "".join(f"{line}\n" for line in lines)


def _standing(joined: Joined, together: Together) -> dict[str, object]:
    from client_agent.site.founding import candidates

    return {
        "admitted": [one.admitted for one in together.standings],
        "waits_for": together.waits_for,
        "roster": together.roster is not None,
        "registered": [{"name": one.name, "lacks": one.lacks} for one in candidates(joined, together)],
    }


def _identity(joined: Joined) -> dict[str, object]:
    from client_agent.site.enrolment_folder import SETTINGS
    from protocol.roster.enrolment import fingerprint_of

    return {
        "site": joined.party.name,
        "fingerprint": fingerprint_of(joined.party),
        "settings": str(joined.folder / SETTINGS),
        "operators": {card.party.name: fingerprint_of(card) for card in joined.cards},
    }


def _fingerprints(joined: Joined) -> str:
    from protocol.roster.enrolment import fingerprint_of

    operators = " and ".join(card.party.name for card in joined.cards)
    return (
        f"{joined.party.name} is registered at {operators} ({joined.folder}). Read this to both of them and to the "
        f"requester, each over the phone:\n\n    {fingerprint_of(joined.party)}\n\n"
        "and have both operators read you theirs, which came with the invitations:\n\n"
        + "".join(f"    {card.party.name}: {fingerprint_of(card)}\n" for card in joined.cards)
        + "\n"
    )


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
