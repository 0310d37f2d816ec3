"""``moiety roster``: show the roster, make keys, and change it with files alone; ``roster_files.py`` does the work.

That is imported when a command runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from client_agent.cli.tables import JsonOption, console, json_line, plain

if TYPE_CHECKING:
    from client_agent.cli.roster_files import Answer

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
RosterArgument = Annotated[Path, typer.Argument(metavar="ROSTER.TOML", help="The roster file.")]
ProposalArgument = Annotated[Path, typer.Argument(metavar="PROPOSAL", help="A file that 'moiety roster change' wrote.")]
SamplesOption = Annotated[int | None, typer.Option(help="A site's number of training examples.")]


@app.callback()
def _roster() -> None:
    """Show the roster; change it by links that both operators and the requester sign."""


@app.command()
def claim(
    roster_file: RosterArgument,
    key: Annotated[Path, typer.Option(help="The secret key file with the new keys.")],
    out: Annotated[Path, typer.Option(help="Where to write the public file, for whoever proposes the change.")],
    samples: SamplesOption = None,
    url: Annotated[str | None, typer.Option(help="An operator's https address.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Claim new keys: state, signed with them, that they are yours.

    For a new site, or a party whose keys are replaced.

    Example: moiety roster claim roster.toml --key keys/clinic-7.secret.toml --out clinic-7.toml
    """
    from client_agent.cli import roster_files

    _say(roster_files.claim(roster_file, key, out, samples, url), json_output=json_output)


@app.command()
def change(
    roster_file: RosterArgument,
    reason: Annotated[str, typer.Option(help="Why, in a line; it is signed and shown to everybody.")],
    out: Annotated[Path, typer.Option(help="Where to write the proposal.")],
    add: Annotated[list[Path] | None, typer.Option(help="The claimed file of a new site; may be repeated.")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="A site's name; may be repeated.")] = None,
    replace: Annotated[
        list[Path] | None, typer.Option(help="The claimed file of a party of the roster; may be repeated.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Change the roster: write a proposal that nobody has signed yet.

    Example: moiety roster change roster.toml --replace a.toml --reason "new key" --out proposal.toml
    """
    from client_agent.cli.roster_files import propose

    _say(propose(roster_file, reason, out, add or (), replace or (), remove or ()), json_output=json_output)


@app.command("sign")
def sign_change(
    proposal_file: ProposalArgument,
    key: Annotated[Path, typer.Option(help="Your secret key file, with the keys of the roster before the change.")],
    json_output: JsonOption = False,
) -> None:
    """Sign a proposed change, once you compared its digest and words.

    Example: moiety roster sign proposal.toml --key keys/operator-a.secret.toml
    """
    from client_agent.cli import roster_files

    _say(roster_files.sign(proposal_file, key), json_output=json_output)


@app.command()
def apply(roster_file: RosterArgument, proposal_file: ProposalArgument, json_output: JsonOption = False) -> None:
    """Apply a change that all three have signed to a roster file.

    Servers and agents take it from there.

    Example: moiety roster apply roster.toml proposal.toml
    """
    from client_agent.cli import roster_files

    _say(roster_files.apply(roster_file, proposal_file), json_output=json_output)


@app.command("new-keys")
def new_keys(
    name: Annotated[str, typer.Option(help="The party's name: lower-case letters, digits, '-'.")],
    role: Annotated[Literal["operator", "site"], typer.Option(help="operator or site.")],
    out: Annotated[Path, typer.Option(help="Folder for NAME.secret.toml and NAME.public.toml.")],
    url: Annotated[str | None, typer.Option(help="An operator's https address, as agents reach it.")] = None,
    samples: SamplesOption = None,
    json_output: JsonOption = False,
) -> None:
    """Make a party's two key pairs.

    Example: moiety roster new-keys --name clinic-7 --role site --samples 412 --out keys
    """
    from client_agent.cli import roster_files
    from protocol.messages.control import Role

    _say(roster_files.new_keys(name, Role(role), out, url, samples), json_output=json_output)


@app.command()
def show(roster_file: RosterArgument, json_output: JsonOption = False) -> None:
    """Show a roster: parties, digest, signatures, and each change in words.

    Compare the digest over the phone.

    Example: moiety roster show roster.toml
    """
    from client_agent.cli import roster_files

    _say(roster_files.show(roster_file), json_output=json_output)


def _say(answer: Answer, *, json_output: bool) -> None:
    """JSON, or lines of any length: a terminal's width cuts off nothing that is compared."""
    values, lines = answer
    if json_output:
        json_line(values)
        return
    for line in lines:
        console().print(plain(line), soft_wrap=True)
