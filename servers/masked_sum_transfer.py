"""Side A sends its masked sum, or fetches the other server's, then commits the release (docs/protocol.md 9)."""

from __future__ import annotations

import asyncio

from protocol.wire import paths
from servers.context import Server
from servers.ending import round_path
from servers.failpoints import Point
from servers.peer_client import PeerClient, chunks_with_digest
from servers.releasing import MaskedSumIntake, commit_release, masked_sum, output_name, with_mask_seed
from servers.store.interface import RoundRecord, StudyRecord


async def send_masked_sum(server: Server, peer: PeerClient, study: StudyRecord, record: RoundRecord) -> None:
    """In a round that side A masks: send the masked sum as a file, then commit without an output of its own."""
    record = with_mask_seed(server, record)
    draft = server.files.draft()
    try:
        pieces = masked_sum(server, record, study.study.parameters)
        digest = await asyncio.to_thread(chunks_with_digest, pieces, draft.path)
        path = round_path(paths.PEER_MASKED_SUM, study, record)
        await peer.put_file(path, draft.path, digest, "masked_sum")
    finally:
        draft.discard()
    commit_release(server, study, record, None)


async def fetch_masked_sum(server: Server, peer: PeerClient, study: StudyRecord, record: RoundRecord) -> None:
    """In a round that side B masks: fetch its masked sum, add the own one and commit with the output."""
    draft = server.files.draft(Point.MASKED_SUM_MIDWAY)
    try:
        intake = MaskedSumIntake(server, record, study.study.parameters, draft)
        async for piece in peer.stream(round_path(paths.PEER_MASKED_SUM, study, record), "masked_sum"):
            await asyncio.to_thread(intake.feed, piece)
        intake.finish()
        await asyncio.to_thread(draft.keep, output_name(record))
    except BaseException:
        draft.discard()
        raise
    commit_release(server, study, record, output_name(record))
