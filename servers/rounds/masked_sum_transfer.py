"""Side A sends its masked sum, or fetches the other server's, then commits the release (docs/protocol.md 9)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from protocol.bodies import masked_sum as body
from protocol.wire import paths
from servers.http.peer_client import PeerClient
from servers.points import Point
from servers.rounds.end_round import round_path
from servers.rounds.masked_sum import SealedMaskedSum, masked_sum_header, sealed_masked_sum
from servers.rounds.release import commit_release, output_name, with_mask_seed
from servers.rounds.sketches import parameters_of
from servers.server import Server
from servers.store.interface import RoundRecord, StudyRecord


async def send_masked_sum(server: Server, peer: PeerClient, study: StudyRecord, record: RoundRecord) -> None:
    """In a round that side A masks: send the masked sum sealed, then commit without an output of its own."""
    record = with_mask_seed(server, record)
    parameters = parameters_of(study, record)
    await peer.put_sealed(
        round_path(paths.PEER_MASKED_SUM, study, record),
        sealed_masked_sum(server, record, parameters),
        body.message_bytes(masked_sum_header(record, parameters)),
        "masked_sum",
    )
    commit_release(server, study, record, None)


async def fetch_masked_sum(server: Server, peer: PeerClient, study: StudyRecord, record: RoundRecord) -> None:
    """In a round that side B masks: fetch its masked sum, add the own one and commit with the output."""
    parameters = parameters_of(study, record)
    with server.files.draft(Point.MASKED_SUM_MIDWAY) as draft:
        intake = SealedMaskedSum(server, record, parameters, draft)
        most = body.most_bytes(parameters.dimension)
        path = round_path(paths.PEER_MASKED_SUM, study, record)
        async with aclosing(peer.stream(path, "masked_sum", most)) as pieces:
            async for piece in pieces:
                await asyncio.to_thread(intake.feed, piece)
        intake.finish()
        await asyncio.to_thread(draft.keep, output_name(record))
    commit_release(server, study, record, output_name(record))
