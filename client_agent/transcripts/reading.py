"""Transcripts that sites kept, read for ``moiety study verify``, and who deviated by them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from client_agent.site.identity import signed_chain
from client_agent.transcripts.keeping import TRANSCRIPTS
from protocol.arithmetic.ring import ELEMENT_BYTES, from_bytes
from protocol.errors import ConfigurationError
from protocol.rounds.evidence import Findings, RoundTranscript, findings
from protocol.sharing import ChunkSource


def verified(places: Sequence[Path], roster_file: Path) -> tuple[Findings, int]:
    """Verify all transcripts together: what was said differently to two sites shows there alone.

    -> the findings, and of how many transcripts
    Raises: ConfigurationError, for files that are no transcripts of one study; BadSignature, for a roster without its
            signatures; MalformedMessage
    """
    roster = signed_chain(roster_file).head
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

    return findings(tuple(of), roster, vector), len(of)


def read_transcripts(place: Path) -> tuple[RoundTranscript, ...]:
    """A transcript's file, or all in a folder. Raises: ConfigurationError"""
    paths = sorted(place.glob("round-*.json")) if place.is_dir() else [place]
    if not paths:
        raise ConfigurationError(
            f"{place}: no transcript of a round is here; take a site's studies/NAME/{TRANSCRIPTS} in its state folder"
        )
    return tuple(_read(path) for path in paths)


def kept_vector(place: Path, one: RoundTranscript) -> tuple[int, ChunkSource]:
    """The masked vector beside a transcript of a sum with wrong tags. Raises: ConfigurationError"""
    folder = place if place.is_dir() else place.parent
    path = folder / Path(one.altered.vector_file if one.altered is not None else "").name
    if not path.is_file():
        raise ConfigurationError(f"{path} is missing: it holds what the servers served in round {one.round}")
    content = path.read_bytes()
    length = len(content) // ELEMENT_BYTES
    vector = from_bytes(content[: length * ELEMENT_BYTES], length)
    return length, lambda start, stop: vector[start:stop]


def _read(path: Path) -> RoundTranscript:
    try:
        return RoundTranscript.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        raise ConfigurationError(f"{path} is not a transcript of a round, or of another release of moiety") from None
