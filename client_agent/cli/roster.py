"""``moiety roster``: propose, sign, apply and show changes of the roster, with files alone.

A proposal is a roster file whose last change is not signed by all three yet; it travels from one signer to the next.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from client_agent.cli.tables import JsonOption, console, plain
from host.files import read_secret
from host.output_files import rewrite, write_new
from host.settings import read_text
from protocol.errors import ConfigurationError, MoietyError
from protocol.messages.control import RosterChange, Signed
from protocol.roster.chain import RosterChain, in_words, require_chain, require_extension
from protocol.roster.changes import (
    Given,
    Wanted,
    claimed,
    dump_chain,
    dump_given,
    parse_chain,
    parse_given,
    proposed,
    signed_by,
    standing,
)
from protocol.roster.keyfile import PartyKeys, parse_party_keys

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
RosterArgument = Annotated[Path, typer.Argument(metavar="ROSTER.TOML", help="The roster file.")]
ProposalArgument = Annotated[Path, typer.Argument(metavar="PROPOSAL", help="A file that 'moiety roster change' wrote.")]


@app.callback()
def _roster() -> None:
    """Change the roster by links that both operators and the requester sign, and show its chain."""


@app.command()
def claim(
    roster_file: RosterArgument,
    key: Annotated[Path, typer.Option(help="The secret key file with the new keys.")],
    out: Annotated[Path, typer.Option(help="Where to write the public file, for whoever proposes the change.")],
    samples: Annotated[int | None, typer.Option(help="A site's number of training examples.")] = None,
    url: Annotated[str | None, typer.Option(help="An operator's https address.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Say, signed with new keys, that they are yours: a new site, or a party whose keys are replaced."""
    chain = require_chain(read_chain(roster_file))
    keys = parse_key(key)
    had = chain.head.party(keys.name)
    if had is not None:
        samples, url = samples or had.samples, url or had.url
    given = claimed(keys, chain.first_digest, url=url, samples=samples)
    write_new((out, dump_given(given, chain.first_digest), 0o644))
    if json_output:
        _print({"name": keys.name, "claim": str(out), "signing_key": given.party.signing_key})
    else:
        _say(f"{out}: give it to whoever proposes the change; signing key {given.party.signing_key}")


@app.command()
def change(
    roster_file: RosterArgument,
    reason: Annotated[str, typer.Option(help="Why, in a line; it is signed and shown to everybody.")],
    out: Annotated[Path, typer.Option(help="Where to write the proposal.")],
    add: Annotated[list[Path] | None, typer.Option(help="The claimed file of a new site; once for each.")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="A site's name; once for each.")] = None,
    replace: Annotated[
        list[Path] | None, typer.Option(help="The file of a party that is in the roster, as it is to be.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Propose the next change; nobody has signed it yet."""
    chain = require_chain(read_chain(roster_file))
    new, other = [_given(path) for path in add or ()], [_given(path) for path in replace or ()]
    for given, known in ((new, False), (other, True)):
        for one in given:
            if (chain.head.party(one.party.name) is not None) is not known:
                option, found = ("--replace", "not in") if known else ("--add", "already in")
                raise ConfigurationError(f"option {option}: {one.party.name!r} is {found} the roster")
    made = proposed(chain, Wanted((*new, *other), tuple(remove or ())), reason)
    proposal = RosterChain(chain.first, (*chain.changes, Signed[RosterChange](message=made)))
    write_new((out, dump_chain(proposal), 0o644))
    if json_output:
        _print({"proposal": str(out), **link_summary(proposal, proposal.number)})
    else:
        _show_link(proposal, proposal.number)
        _say(f"{out}: each of these signs it: moiety roster sign {out} --key FILE")


@app.command("sign")
def sign_change(
    proposal_file: ProposalArgument,
    key: Annotated[Path, typer.Option(help="Your secret key file, with the keys of the roster before the change.")],
    json_output: JsonOption = False,
) -> None:
    """Add your signature to a proposed change, after comparing its digest and words with the others."""
    chain = signed_proposal(read_chain(proposal_file), parse_key(key))
    rewrite(proposal_file, dump_chain(chain))
    if json_output:
        _print(link_summary(chain, chain.number))
    else:
        _show_link(chain, chain.number)


@app.command()
def apply(roster_file: RosterArgument, proposal_file: ProposalArgument, json_output: JsonOption = False) -> None:
    """Put a change that all three have signed into a roster file; servers and agents take it from there."""
    held = require_chain(read_chain(roster_file))
    longer = require_extension(read_chain(proposal_file), held)
    if longer.number > held.number:
        rewrite(roster_file, dump_chain(longer))
    if json_output:
        _print(chain_summary(longer))
    else:
        _say(f"{roster_file}: change {longer.number}, digest {longer.head_digest}")


@app.command()
def show(roster_file: RosterArgument, json_output: JsonOption = False) -> None:
    """Show the roster's chain: each change in words, who signed it, and the digests to compare over the phone."""
    chain = read_chain(roster_file)
    if json_output:
        _print(chain_summary(chain))
        return
    show_links(chain)


def read_chain(path: Path) -> RosterChain:
    """A roster file, its signatures unchecked. Raises: ConfigurationError, MalformedMessage"""
    return parse_chain(read_text(path), str(path))


def parse_key(path: Path) -> PartyKeys:
    """A secret key file. Raises: ConfigurationError"""
    return parse_party_keys(read_secret(path), str(path))


def signed_proposal(chain: RosterChain, keys: PartyKeys) -> RosterChain:
    """The same chain with one more signature under its last change."""
    if not chain.changes:
        raise ConfigurationError(
            "this roster has no change to sign: 'moiety roster change' proposes one; a first roster is signed by all "
            "when the requester runs 'moiety site found'"
        )
    before = require_chain(chain.up_to(chain.number - 1))
    return RosterChain(chain.first, (*before.changes, signed_by(before, chain.changes[-1], keys)))


def link_summary(chain: RosterChain, number: int) -> dict[str, Any]:
    """A change as JSON: its digest, what it does, who has signed. Requires: 1 <= number <= chain.number"""
    before, signed = chain.up_to(number - 1), chain.changes[number - 1]
    return {
        "number": number,
        "digest": chain.digests[number],
        "reason": signed.message.reason,
        "changes": list(in_words(before.head, signed.message.roster)),
        "signatures": standing(before, signed),
    }


def chain_summary(chain: RosterChain) -> dict[str, Any]:
    """All links as JSON; ``valid`` says whether every one is signed by all three and follows the one before."""
    return {
        "federation": chain.head.federation,
        "first": chain.first_digest,
        "head": chain.head_digest,
        "changes": [link_summary(chain, number) for number in range(1, chain.number + 1)],
        "valid": problem_of(chain) == "",
    }


def problem_of(chain: RosterChain) -> str:
    """Why a chain is not valid; empty for one that is."""
    try:
        require_chain(chain)
    except MoietyError as wrong:
        return wrong.detail
    return ""


def show_links(chain: RosterChain) -> None:
    """Every link on lines of any length, oldest first, and whether the chain is valid."""
    _say(f"first link    {chain.first_digest}")
    for number in range(1, chain.number + 1):
        _show_link(chain, number)
    problem = problem_of(chain)
    _say(f"newest link   {chain.head_digest} (change {chain.number})")
    _say("valid" if not problem else f"not valid: {problem}")


def _show_link(chain: RosterChain, number: int) -> None:
    of = link_summary(chain, number)
    _say(f"change {number}      {of['digest']}")
    _say(f"  reason      {of['reason']}")
    for line in of["changes"]:
        _say(f"  {line}")
    for name, signature in of["signatures"].items():
        _say(f"  signature of {name}: {signature}")


def _given(path: Path) -> Given:
    return parse_given(read_text(path), str(path))


def _say(line: str) -> None:
    console().print(plain(line), soft_wrap=True)


def _print(values: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
