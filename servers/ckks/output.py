"""The sum of ciphertexts at side A, and its way to the sites (docs/protocol.md 11)."""

from __future__ import annotations

import hashlib
from typing import Final

from protocol.ckks.ciphertext import Kind, body_bytes
from protocol.errors import UnknownResource
from protocol.sharing import Side
from servers.ckks.sums import stored_chunks, summed_body
from servers.ckks.uploads import PARAMETERS, body_header
from servers.points import Point
from servers.server import Server
from servers.store.interface import RoundRecord, StudyRecord

_BOTH: Final = 2


def write_sum(server: Server, study: StudyRecord, record: RoundRecord, name: str) -> str:
    """Add the released sites' ciphertexts into the file ``name``, chunk by chunk; its SHA-256. Blocks.

    Raises: ProtocolViolation, Unavailable, ConfigurationError, StorageFull
    """
    announcement, of = record.announcement.message, study.study
    files = {contribution.site: contribution.file for contribution in server.store.contributions(record.key)}
    sources = [
        stored_chunks(server.files.path(_named(files.get(site), site)), site, PARAMETERS, of.encrypted_values)
        for site in record.chosen.message.sites
    ]
    server.files.require_room(body_bytes(PARAMETERS, Kind.SUM, of.encrypted_values))
    draft, taken = server.files.draft(Point.MASKED_SUM_MIDWAY), hashlib.sha256()
    try:
        for piece in summed_body(server.ckks, PARAMETERS, body_header(server, Kind.SUM, announcement, of), sources):
            taken.update(piece)
            draft.write(piece)
        draft.keep(name)
    except BaseException:
        draft.discard()
        raise
    return taken.hexdigest()


def require_served(server: Server, record: RoundRecord) -> None:
    """A released round's sum may leave this server. Raises: UnknownResource"""
    if server.side is not Side.A:
        raise UnknownResource("the sum of a round of ciphertexts is at side A alone")
    if record.sum_release is None or len(record.sum_release.signatures) != _BOTH:
        raise UnknownResource(
            f"the sum of round {record.key.round} is not signed by both servers; wait until the view says 'released'"
        )


def _named(file: str | None, site: str) -> str:
    if file is None:
        raise UnknownResource(f"the contribution of {site!r} is no longer kept")
    return file
