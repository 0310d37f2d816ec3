"""Describe a change of the roster in words that people compare over the phone."""

from __future__ import annotations

from protocol.wire.messages import Party, Roster


def in_words(before: Roster, after: Roster) -> tuple[str, ...]:
    """A line for everything that differs; keys by the first 16 digits of the signing key."""
    lines = [
        f"{site.name} is removed: its requests are refused, no announcement lists it"
        for site in before.sites
        if after.party(site.name) is None
    ]
    for party in after.parties:
        had = before.party(party.name)
        if had is None:
            samples = f"with {party.samples} training examples and "
            lines.append(f"{party.name} is added, {samples}signing key {party.signing_key[:16]}")
        elif had != party:
            lines += [f"{party.name}: {what}" for what in _differences(had, party)]
    return tuple(lines)


def _differences(had: Party, has: Party) -> list[str]:
    found = []
    if had.signing_key != has.signing_key:
        found.append(f"a new signing key, {has.signing_key[:16]} in place of {had.signing_key[:16]}")
    if had.sealing_key != has.sealing_key:
        found.append(f"a new sealing key, {has.sealing_key[:16]} in place of {had.sealing_key[:16]}")
    if had.url != has.url:
        found.append(f"the address {has.url} in place of {had.url}")
    if had.samples != has.samples:
        found.append(f"{has.samples} training examples in place of {had.samples}")
    return found
