"""Keep every round's signed messages at a site, for ``moiety study verify`` (docs/protocol.md 15).

studies/NAME/transcripts/round-000004-01.json     the messages of one attempt
                         round-000004-01.vector   the masked vector of a sum with wrong tags, and of no other

So that a study's folder does not grow without end, those of its newest ``transcripts_kept_rounds`` stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from client_agent.study.participant import Participant
from host.files import new_folder, write_pieces
from protocol.arithmetic.ring import octets
from protocol.errors import MoietyError
from protocol.messages import bodies
from protocol.messages.control import OutputHeader, RoundView, Signed, TagsFailed, TagShares
from protocol.release import masking_side
from protocol.rounds.evidence import AlteredSum, PastRelease, shown

TRANSCRIPTS: Final = "transcripts"
_VECTOR: Final = ".vector"
_SWEPT_EVERY_ROUNDS: Final = 50


def keep_transcript(
    owner: Participant,
    views: tuple[RoundView, RoundView],
    past: PastRelease | None = None,
    failed: Signed[TagsFailed] | None = None,
    shares: tuple[Signed[TagShares], ...] = (),
) -> None:
    """Keep the transcript of an ended round, once; ``past`` is its release, ``failed`` and ``shares`` are what the
    requester alone has.

    After a sum with wrong tags both its halves are kept too: with them the signed checks prove who altered it.
    """
    path = _path(owner.journal.folder, views[0].round, views[0].attempt)
    if path.exists():
        return
    altered = None
    if past is not None and past.announcement.round in owner.state.altered:
        altered = _altered(owner, past, path.with_suffix(_VECTOR))
    go = None if past is None else past.go
    kept = shown(owner.study_digest, owner.context.site, views, failed=failed, shares=shares, go=go, altered=altered)
    owner.journal.write(path, kept)
    if views[0].round % _SWEPT_EVERY_ROUNDS == 0:
        _forget_before(path.parent, views[0].round - owner.context.transcripts_kept_rounds)


def _forget_before(folder: Path, round_number: int) -> None:
    """Transcripts of earlier rounds go; those of a sum with wrong tags, which prove who altered it, stay."""
    for path in folder.glob("round-*.json"):
        if int(path.stem.split("-")[1]) < round_number and not path.with_suffix(_VECTOR).exists():
            path.unlink()


def _path(folder: Path, round_number: int, attempt: int) -> Path:
    return new_folder(folder / TRANSCRIPTS) / f"round-{round_number:06d}-{attempt:02d}.json"


def _altered(owner: Participant, past: PastRelease, into: Path) -> AlteredSum | None:
    """Both halves once more, to a file; None where a server does not serve them any more."""
    masking = masking_side(past.announcement.round)
    try:
        mask_seed = owner.fetched(past, masking, bodies.output_seed)
        owner.fetched(past, masking.other, lambda header, content: _store(into, header, content))
    except MoietyError as gone:
        owner.problem(past.announcement.round, f"what was served cannot be kept: {gone.detail}")
        return None
    return AlteredSum(tag_seed=past.weight_list.tag_seed or "", mask_seed=mask_seed.hex(), vector_file=into.name)


def _store(into: Path, header: OutputHeader, content: Iterator[bytes]) -> None:
    write_pieces(into, (octets(piece) for _, piece in bodies.output_elements(header, content)))
