"""Side A sends its masked sum, or fetches the other server's, then releases its half or commits to it (9, 15)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from protocol.messages import bodies as body
from protocol.messages import paths
from servers.http.peer_client import PeerClient
from servers.points import Point
from servers.rounds.end_round import round_path
from servers.rounds.masked_sum import SealedMaskedSum, masked_sum_header, sealed_masked_sum, summed_length
from servers.rounds.release import keep_mask, keep_output, output_name, with_mask_seed
from servers.rounds.sketches import parameters_of, require_unaltered
from servers.server import Server
from servers.store.study_records import RoundRecord, StudyRecord


async def send_masked_sum(server: Server, peer: PeerClient, study: StudyRecord, record: RoundRecord) -> None:
    """In a round that side A masks: send the masked sum sealed, then release with the mask, or commit to it."""
    record = with_mask_seed(server, record)
    parameters = parameters_of(study, record)
    await peer.put_sealed(
        round_path(paths.PEER_MASKED_SUM, study, record),
        sealed_masked_sum(server, record, parameters),
        body.masked_sum_bytes(masked_sum_header(record, parameters)),
        "masked_sum",
    )
    keep_mask(server, study, record)


async def fetch_masked_sum(server: Server, peer: PeerClient, study: StudyRecord, record: RoundRecord) -> None:
    """In a round that side B masks: fetch its masked sum, add the own one and commit with the output."""
    await asyncio.to_thread(require_unaltered, server, record)
    parameters = parameters_of(study, record)
    with server.files.draft(Point.MASKED_SUM_MIDWAY) as draft:
        intake = SealedMaskedSum(server, record, parameters, draft)
        most = body.most_masked_sum_bytes(summed_length(record, parameters))
        path = round_path(paths.PEER_MASKED_SUM, study, record)
        async with aclosing(peer.stream(path, "masked_sum", most)) as pieces:
            async for piece in pieces:
                await asyncio.to_thread(intake.feed, piece)
        intake.finish()
        await asyncio.to_thread(draft.keep, output_name(record))
    keep_output(server, study, record, output_name(record), intake.half_digest())
