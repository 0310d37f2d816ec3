"""The work of ``moiety roster``: each function gives the answer as JSON has it, and its lines for a person.

A proposal is a roster file whose last change is not signed by all three yet; it travels from one signer to the next.
A secret key file stays on the machine where it was made.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from host.files import read_secret
from host.output_files import rewrite, write_new
from host.randomness import new_party_keys
from host.settings import read_text
from protocol.configuration import explain
from protocol.errors import BadSignature, ConfigurationError, MalformedMessage, MoietyError
from protocol.messages.control import (
    Party,
    Role,
    Roster,
    RosterChange,
    Signed,
    check_signature,
    require_roster,
)
from protocol.roster.chain import (
    Given,
    RosterChain,
    Wanted,
    claimed,
    dump_chain,
    dump_given,
    in_words,
    parse_chain,
    parse_given,
    proposed,
    require_chain,
    require_extension,
    signed_by,
    standing,
)
from protocol.roster.keyfile import PartyKeys, dump_party, dump_party_keys, parse_party_keys

Answer = tuple[dict[str, Any], list[str]]


def new_keys(name: str, role: Role, out: Path, url: str | None, samples: int | None) -> Answer:
    if role is Role.OPERATOR and (url is None or samples is not None):
        raise ConfigurationError("an operator needs --url, and takes no --samples")
    if role is Role.SITE and (samples is None or url is not None):
        raise ConfigurationError("a site needs --samples, and takes no --url")
    keys = new_party_keys(name, role)
    try:
        party = Party.parse(
            json.dumps(keys.party().model_dump(mode="json") | {"url": url, "samples": samples}).encode()
        )
    except MalformedMessage as wrong:
        raise ConfigurationError(wrong.detail) from None
    except ValidationError as wrong:
        raise ConfigurationError(f"option --name (lower-case letters, digits, '-'): {explain(Party, wrong)}") from None
    secret, public = out / f"{name}.secret.toml", out / f"{name}.public.toml"
    write_new((secret, dump_party_keys(keys), 0o600), (public, dump_party(party), 0o644))
    made = {"name": name, "secret": str(secret), "public": str(public)}
    return made, [f"{secret}: keep it on this machine", f"{public}: its public half"]


def claim(roster_file: Path, key: Path, out: Path, samples: int | None, url: str | None) -> Answer:
    chain, keys = require_chain(read_chain(roster_file)), _keys(key)
    had = chain.head.party(keys.name)
    if had is not None:
        samples, url = samples or had.samples, url or had.url
    given = claimed(keys, chain.first_digest, url=url, samples=samples)
    write_new((out, dump_given(given, chain.first_digest), 0o644))
    signing = given.party.signing_key
    made = {"name": keys.name, "claim": str(out), "signing_key": signing}
    return made, [f"{out}: give it to whoever proposes the change; signing key {signing}"]


def propose(
    roster_file: Path, reason: str, out: Path, add: Sequence[Path], replace: Sequence[Path], remove: Sequence[str]
) -> Answer:
    chain = require_chain(read_chain(roster_file))
    new, other = [_given(path) for path in add], [_given(path) for path in replace]
    for given, known in ((new, False), (other, True)):
        for one in given:
            if (chain.head.party(one.party.name) is not None) is not known:
                option, found = ("--replace", "not in") if known else ("--add", "already in")
                raise ConfigurationError(f"option {option}: {one.party.name!r} is {found} the roster")
    made = proposed(chain, Wanted((*new, *other), tuple(remove)), reason)
    proposal = RosterChain(chain.first, (*chain.changes, Signed[RosterChange](message=made)))
    write_new((out, dump_chain(proposal), 0o644))
    link = _link(proposal, proposal.number)
    return {"proposal": str(out), **link}, [
        *_lines(link),
        f"{out}: each of these signs it: moiety roster sign {out} --key FILE",
    ]


def sign(proposal_file: Path, key: Path) -> Answer:
    chain, keys = read_chain(proposal_file), _keys(key)
    if not chain.changes:
        raise ConfigurationError(
            "this roster has no change to sign: 'moiety roster change' proposes one; a first roster is signed by all "
            "when the requester runs 'moiety site found'"
        )
    before = require_chain(chain.up_to(chain.number - 1))
    chain = RosterChain(chain.first, (*before.changes, signed_by(before, chain.changes[-1], keys)))
    rewrite(proposal_file, dump_chain(chain))
    link = _link(chain, chain.number)
    return link, _lines(link)


def apply(roster_file: Path, proposal_file: Path) -> Answer:
    held = require_chain(read_chain(roster_file))
    longer = require_extension(read_chain(proposal_file), held)
    if longer.number > held.number:
        rewrite(roster_file, dump_chain(longer))
    return _summary(longer), [f"{roster_file}: change {longer.number}, digest {longer.head_digest}"]


def show(roster_file: Path) -> Answer:
    """Parties with the signatures under the first roster, its digest, and every change in words, oldest first."""
    chain = read_chain(roster_file)
    first, roster = chain.first, chain.first.message
    complete = not _problem(lambda: require_roster(first))
    signed = {party.name: _signature(first, party) for party in roster.parties if first.signature_of(party.name)}
    values = _summary(chain) | {
        "requester": roster.requester,
        "digest": roster.digest(),
        "parties": [party.name for party in roster.parties],
        "signatures": signed,
        "complete": complete,
    }
    lines = [line for party in chain.head.parties for line in _party(first, party)]
    lines += [f"federation {roster.federation}, requester {roster.requester}", f"digest {roster.digest()}"]
    lines.append("complete" if complete else "not complete: both operators and the requester must sign")
    if chain.changes:
        problem = _problem(lambda: require_chain(chain))
        lines.append(f"first link    {chain.first_digest}")
        lines += [line for number in range(1, chain.number + 1) for line in _lines(_link(chain, number))]
        lines.append(f"newest link   {chain.head_digest} (change {chain.number})")
        lines.append(f"not valid: {problem}" if problem else "valid")
    return values, lines


def read_chain(path: Path) -> RosterChain:
    """Return a roster file's chain, its signatures unchecked. Raises: ConfigurationError, MalformedMessage"""
    return parse_chain(read_text(path), str(path))


def _keys(path: Path) -> PartyKeys:
    return parse_party_keys(read_secret(path), str(path))


def _given(path: Path) -> Given:
    return parse_given(read_text(path), str(path))


def _problem(check: Any) -> str:  # noqa: ANN401  # what it returns is of no use here
    """Why it is not valid; empty where it is."""
    try:
        check()
    except MoietyError as wrong:
        return wrong.detail
    return ""


def _summary(chain: RosterChain) -> dict[str, Any]:
    """All links; ``valid`` says whether every one is signed by all three and follows the one before."""
    return {
        "federation": chain.head.federation,
        "first": chain.first_digest,
        "head": chain.head_digest,
        "changes": [_link(chain, number) for number in range(1, chain.number + 1)],
        "valid": not _problem(lambda: require_chain(chain)),
    }


def _link(chain: RosterChain, number: int) -> dict[str, Any]:
    """A change: its digest, what it does, who has signed. Requires: 1 <= number <= chain.number"""
    before, signed = chain.up_to(number - 1), chain.changes[number - 1]
    return {
        "number": number,
        "digest": chain.digests[number],
        "reason": signed.message.reason,
        "changes": list(in_words(before.head, signed.message.roster)),
        "signatures": standing(before, signed),
    }


def _lines(link: dict[str, Any]) -> list[str]:
    return [
        f"change {link['number']}      {link['digest']}",
        f"  reason      {link['reason']}",
        *(f"  {line}" for line in link["changes"]),
        *(f"  signature of {name}: {signature}" for name, signature in link["signatures"].items()),
    ]


def _party(signed: Signed[Roster], party: Party) -> list[str]:
    """All of what has to be compared."""
    came = signed.message.party(party.name) or party
    lines = [f"{party.name}: {party.role.value}"]
    lines += [f"  address      {party.url}"] if party.url else []
    lines += [f"  samples      {party.samples}"] if party.samples is not None else []
    return [*lines, f"  signing key  {party.signing_key}", f"  signature    {_signature(signed, came) or 'none'}"]


def _signature(signed: Signed[Roster], party: Party) -> str:
    signature = signed.signature_of(party.name)
    if signature is None:
        return ""
    try:
        check_signature(signed.message, signature, party)
    except BadSignature:
        return "not valid"
    return "valid"
