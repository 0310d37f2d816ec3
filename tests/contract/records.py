"""One study of two sites, a round of it and a contribution, as a store keeps them."""

from __future__ import annotations

from pathlib import Path

from harness.engine.parties import SiteEntry, make_parties
from protocol.messages.control import (
    Announcement,
    ContributionHeader,
    LayerShape,
    ModelSpec,
    Receipt,
    RoundState,
    RuleName,
    RuleSpec,
    ShareKind,
    Signed,
    Study,
    StudyState,
    TrainingSpec,
)
from protocol.parameters import Needs, StudyParameters
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from servers.store.records import ContributionRecord
from servers.store.study_records import RoundRecord, StudyRecord

PARTIES = make_parties("contract", "site-a", [SiteEntry("site-a", 1), SiteEntry("site-b", 1)], b"contract" * 4)
STUDY = Study(
    name="trial",
    roster_digest=PARTIES.roster.message.digest(),
    parameters=StudyParameters(dimension=2, clip_norm=1.0, least_contributors=1),
    rule=RuleSpec(name=RuleName.FEDAVG),
    model=ModelSpec(kind="linear", layers=(LayerShape(name="w", shape=(2,)),)),
    training=TrainingSpec(),
    rounds=3,
)
RECORD = StudyRecord(STUDY.digest(), Signed[Study](message=STUDY), StudyState.OPEN, "", 1)
KEY = RoundKey(RECORD.digest, 1, 1)
ANNOUNCEMENT = Announcement(
    study_digest=RECORD.digest,
    round=1,
    listed=("site-b",),
    least_contributors=1,
    opens=Needs.NOTHING,
    model_version=0,
    model_digest="00" * 32,
    weight_list_digest="11" * 32,
    closes_at_s=1000,
)
ROUND = RoundRecord(KEY, RoundState.ANNOUNCED, Signed[Announcement](message=ANNOUNCEMENT), 1000.0)


def contribution(site: str, file: str | None = "share-1") -> ContributionRecord:
    header = ContributionHeader(
        study_digest=RECORD.digest,
        round=1,
        attempt=1,
        site=site,
        side=Side.A,
        announcement_digest=ANNOUNCEMENT.digest(),
        commitment_a="22" * 32,
        commitment_b="33" * 32,
        share_kind=ShareKind.SEED,
        length=2,
    )
    receipt = Receipt(study_digest=RECORD.digest, round=1, attempt=1, site=site, side=Side.A, body_digest="44" * 32)
    return ContributionRecord(
        KEY, site, header, "44" * 32, Signed[Receipt](message=receipt), file, None, None if file is None else b"t" * 48
    )


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'store.db'}"
