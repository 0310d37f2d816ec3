"""``moiety study verify``: transcripts read, and who deviated by them told to a person or a program."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from client_agent.cli.lines import json_line
from client_agent.site.identity import signed_roster
from client_agent.study.transcripts import kept_vector, read_transcripts
from protocol.errors import ConfigurationError
from protocol.printable import printable
from protocol.sharing import ChunkSource
from protocol.transcript.deviations import Findings, findings
from protocol.transcript.kept import RoundTranscript


def verify_transcripts(places: Sequence[Path], roster_file: Path, *, json_output: bool) -> bool:
    """Several places are looked at together: what was said differently to two sites shows there alone.

    -> whether nobody deviated, by what is signed
    Raises: ConfigurationError, for files that are no transcripts of one study; MalformedMessage
    """
    roster = signed_roster(roster_file)
    of: dict[RoundTranscript, Path] = {}
    for place in places:
        for one in read_transcripts(place):
            of.setdefault(one, place)
    studies = {one.study_digest for one in of}
    if len(studies) > 1:
        raise ConfigurationError(
            f"these transcripts are of {len(studies)} studies: verify those of one, of as many sites as you like"
        )

    def vector(one: RoundTranscript) -> tuple[int, ChunkSource]:
        whole = next(kept for kept in of if kept.altered == one.altered and kept.kept_by == one.kept_by)
        return kept_vector(of[whole], one)

    found = findings(tuple(of), roster, vector)
    (_as_json if json_output else _as_text)(found, len(of))
    return not found.deviations


def _as_json(found: Findings, transcripts: int) -> None:
    for one in found.deviations:
        json_line({"round": one.round, "parties": list(one.parties), "deviation": one.what})
    for text in found.unproven:
        json_line({"unproven": text})
    json_line({"transcripts": transcripts, "signatures": found.looked_at, "deviations": len(found.deviations)})


def _as_text(found: Findings, transcripts: int) -> None:
    for one in found.deviations:
        sys.stdout.write(f"round {one.round}: {' or '.join(one.parties)} {printable(one.what)}\n")
    for text in found.unproven:
        sys.stdout.write(f"proves nothing: {printable(text)}; ask another site for its transcript\n")
    said = "nobody deviated by what is signed" if not found.deviations else "show these lines to both operators"
    sys.stdout.write(f"{transcripts} transcripts, {found.looked_at} signatures looked at: {said}\n")
