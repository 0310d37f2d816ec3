"""Mutations of the product, each of which the simulator of faults must find within some seeds.

    python -m tests.kit.mutations [SEEDS] [NAME ...]

A mutation replaces a function while seeds run, from 0 on, until one breaks a promise. Printed as JSON: how many seeds
that took, and the promise; exit status 1 where a mutation was not found. SEEDS is 1000 unless said otherwise. The
mutations found before the simulator was rewritten are in ``tests/frozen/baseline/mutations.json``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from harness.attack.attack import passes, taken_out
from harness.faults.cli import quiet
from harness.faults.schedule import Level
from harness.faults.simulation import Simulated
from harness.faults.simulator import simulated
from protocol.errors import ProtocolViolation
from protocol.messages.control import AgreedSet, ContributionHeader, Receipt, Signed
from protocol.roster.chain import RosterChain
from protocol.rounds import agreement
from protocol.rounds.states import RoundEvent, RoundKey
from servers.rounds.endings import Endings, commit_end
from servers.server import Server
from servers.store.files import Draft
from servers.store.records import Answer, AnswerKind, ContributionRecord, RoundRecord, StudyRecord
from servers.store.sql import SqlStore

_ADD = SqlStore.add_contribution
_ANSWER = SqlStore.answer
_AGREE = agreement.agree
_FOLLOW = Server.follow
_MASK_BYTES: Final = 32
_LATER_S: Final = 0.3


def on_servers(seed: int) -> Simulated:
    return simulated(seed, Level.SERVERS)


@dataclass(frozen=True)
class Mutation:
    """``does``: what is wrong with the code; ``put_in``: functions by their places; ``runs`` one seed.

    ``seed`` finds it. After a change of the product that moves messages, the command above names another one.
    """

    name: str
    does: str
    seed: int
    put_in: Mapping[str, object]
    runs: Callable[[int], Simulated] = on_servers


@dataclass(frozen=True)
class Seen:
    """``seeds``: how many ran; the last one of them found it where ``by`` says what did not hold."""

    name: str
    seeds: int
    by: str


def seen(mutation: Mutation, seeds: Sequence[int]) -> Seen:
    """Run seeds until one finds it."""
    with taken_out(mutation.put_in):
        for ran, seed in enumerate(seeds, 1):
            found = mutation.runs(seed)
            if found.failed:
                return Seen(mutation.name, ran, found.failed[0])
    return Seen(mutation.name, len(seeds), "")


# --- what takes the place of the product's functions ------------------------------------------------------------------


def _unsynced(draft: Draft, name: str) -> None:
    folder = draft.path.parent
    draft._file.close()
    draft.path.rename(folder / name)
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def _committed_later(store: SqlStore, record: ContributionRecord, state: Any) -> None:
    """The receipt leaves now; the row follows, if the server still lives."""
    asyncio.get_running_loop().create_task(_commit(partial(_ADD, store, record, state)))


async def _commit(add: Callable[[], None]) -> None:
    await asyncio.sleep(_LATER_S)
    add()


def _mask_not_kept(server: Server, record: RoundRecord) -> RoundRecord:
    seed = server.randomness.bytes(_MASK_BYTES, f"{record.key.label} output mask")
    return record if record.mask_seed is not None else dataclasses.replace(record, mask_seed=seed)


def _products_anew(store: SqlStore, key: RoundKey, kind: AnswerKind) -> Answer | None:
    return None if kind is AnswerKind.PRODUCTS else _ANSWER(store, key, kind)


async def _ends_alone(endings: Endings, record: RoundRecord) -> None:
    commit_end(endings.server, record, record.signed_outcome)


async def _end_not_stored(endings: Endings, record: RoundRecord, due: Any) -> None:
    await endings.deliver(dataclasses.replace(record, outcome=endings.server.sign(due.outcome)))


def _mine_alone(announcement: Any, attempt: int, roster: Any, mine: Any, theirs: Any) -> AgreedSet:
    return _AGREE(announcement, attempt, roster, mine, mine)


def _no_correlation_used(store: SqlStore, key: RoundKey) -> int:
    return 0


def _not_looked_at_again(
    server: Server,
    study: StudyRecord,
    key: RoundKey,
    header: ContributionHeader,
    digest: str,
    name: str,
    wrapped_key: bytes | None,
    chunk_tags: bytes,
) -> Signed[Receipt]:
    """Ignore what happened while the body came."""
    record = server.store.round(key)
    if record is None:
        raise ProtocolViolation(f"{key.label} is not here")
    receipt = server.sign(
        Receipt(
            study_digest=study.digest,
            round=key.round,
            attempt=key.attempt,
            site=header.site,
            side=server.side,
            body_digest=digest,
        )
    )
    state = record.begun.after(RoundEvent.CONTRIBUTION_STORED)
    server.store.add_contribution(
        ContributionRecord(key, header.site, header, digest, receipt, name, wrapped_key, chunk_tags), state
    )
    return receipt


def _keeps_the_removed(server: Server, chain: RosterChain) -> None:
    """Go on admitting parties that were removed from the roster."""
    before = (
        dict(getattr(server, "parties", {})),
        dict(getattr(server, "verify_keys", {})),
        getattr(server, "_sites", {}),
    )
    _FOLLOW(server, chain)
    server.parties, server.verify_keys, server._sites = (
        {**before[0], **server.parties},
        {**before[1], **server.verify_keys},
        {**before[2], **server._sites},
    )


MUTATIONS: Final = (
    Mutation(
        "unsynced",
        "a share's row is committed before its file is synced",
        0,
        {"servers.store.files.Draft.keep": _unsynced},
    ),
    Mutation(
        "early receipt",
        "a receipt leaves before the contribution is committed",
        8,
        {"servers.store.sql.SqlStore.add_contribution": _committed_later},
    ),
    Mutation(
        "mask not kept",
        "a masked sum leaves before its mask is stored",
        0,
        {
            "servers.rounds.masked_sum.with_mask_seed": _mask_not_kept,
            "servers.api.peer.with_mask_seed": _mask_not_kept,
        },
    ),
    Mutation("unmarked", "correlations are not marked as used", 0, {"servers.store.sql.SqlStore.mark_used": passes}),
    Mutation(
        "spent again",
        "after a restart side A does not look whether the attempt has used correlations",
        85,
        {"servers.store.sql.SqlStore.correlations_used": _no_correlation_used},
    ),
    Mutation(
        "computed anew",
        "side B answers the same masked vectors with new ones",
        20,
        {"servers.store.sql.SqlStore.answer": _products_anew},
    ),
    Mutation(
        "cohort not compared",
        "a round locks with side A's contributions, whatever side B holds",
        7,
        {"protocol.rounds.side_a.agree": _mine_alone, "protocol.rounds.side_b._check_held": passes},
    ),
    Mutation(
        "ends alone",
        "a round that has run out of time ends at side A only",
        0,
        {"servers.rounds.endings.Endings.deliver": _ends_alone},
    ),
    Mutation(
        "end not stored",
        "side A has its peer sign a round's end before it has stored its own word",
        39,
        {"servers.rounds.endings.Endings.end": _end_not_stored},
    ),
    Mutation(
        "not looked at again",
        "a contribution is stored by what was there before its body came",
        39,
        {"servers.rounds.contributions.commit_share": _not_looked_at_again},
    ),
    Mutation(
        "removed stay",
        "a running server that takes a longer roster goes on answering who was removed by it",
        4,
        {"servers.server.Server.follow": _keeps_the_removed},
    ),
    Mutation(
        "roster of now",
        "a round under way is locked by the newest roster, not by the one that it was announced under",
        7,
        {"servers.rounds.contributions.roster_of": lambda server, record: server.roster},
    ),
    Mutation(
        "sums forgotten",
        "a site and the requester do not remember which sums they agreed to",
        77,
        {"client_agent.site.sum_memory.SumMemory._put": passes},
    ),
    Mutation(
        "no nonces",
        "a signed request is taken as often as it comes",
        2,
        {
            "servers.store.sql.SqlStore.remember_nonce": passes,
            "protocol.channel.session.CounterWindow.take": passes,
        },
        simulated,
    ),
)


def main(most_seeds: int, names: Sequence[str]) -> int:
    """Return 0 if every mutation was found, those with these names where there are any."""
    quiet()
    missed = 0
    for mutation in MUTATIONS:
        if not names or mutation.name in names:
            found = seen(mutation, range(most_seeds))
            sys.stdout.write(json.dumps(asdict(found)) + "\n")
            sys.stdout.flush()
            missed += not found.by
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 1000, sys.argv[2:]))
