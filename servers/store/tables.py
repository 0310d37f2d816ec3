"""The tables; ``migrations/`` builds them, and a contract test compares the two."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

METADATA = MetaData()


def _of_an_attempt() -> tuple[Column[Any], ...]:
    numbers = (Column(name, Integer, primary_key=True) for name in ("round", "attempt"))
    return (Column("study", ForeignKey("studies.digest"), primary_key=True), *numbers)


boots = Table("boots", METADATA, Column("boot", Integer, primary_key=True, autoincrement=True))

lease = Table(
    "lease",
    METADATA,
    Column("place", Integer, primary_key=True),
    Column("boot", Integer),
    Column("holder", String(200)),
    Column("folder", String(64)),
    Column("until_s", Float, nullable=False),
)
"""One row: which of several processes drives, until when by this database's clock, and where all of them keep files."""

owner = Table(
    "owner",
    METADATA,
    Column("kind", String(63), primary_key=True),
    Column("name", String(63), nullable=False),
    Column("key_id", String(64), nullable=False),
    Column("federation", String(63), nullable=False),
)

studies = Table(
    "studies",
    METADATA,
    Column("digest", String(64), primary_key=True),
    Column("name", String(63), nullable=False, unique=True),
    Column("signed", LargeBinary, nullable=False),
    Column("state", String(20), nullable=False),
    Column("reason", Text, nullable=False),
    Column("cursor", Integer, nullable=False),
    Column("absent_in_a_row", Integer, nullable=False),
    Column("end", LargeBinary),
    Column("created_at_s", Float),
    Column("stranded_by", String(63)),
)

history = Table(
    "history",
    METADATA,
    Column("place", Integer, primary_key=True),
    Column("changes", BigInteger, nullable=False),
    Column("began", BigInteger),
    Column("restored_at_s", BigInteger, nullable=False),
)

histories = Table(
    "histories",
    METADATA,
    Column("party", String(63), primary_key=True),
    Column("signed", LargeBinary, nullable=False),
)

ready_sites = Table(
    "ready_sites",
    METADATA,
    Column("study", ForeignKey("studies.digest"), primary_key=True),
    Column("site", String(63), primary_key=True),
    Column("since_s", Float),
)

_BYTES_OF_A_ROUND = (
    *("agreed_set", "own_nonce", "transcript", "query_header", "release_set", "mask_seed", "sum_release", "outcome"),
    *("commitment", "tag_seed", "tag_check", "go", "tags_failed"),
)
rounds = Table(
    "rounds",
    METADATA,
    *_of_an_attempt(),
    Column("state", String(20), nullable=False),
    Column("announcement", LargeBinary, nullable=False),
    Column("closes_at_s", Float, nullable=False),
    Column("peer_commitment", String(64)),
    Column("query_digest", String(64)),
    Column("query_file", Text),
    Column("output_file", Text),
    Column("committed_at_s", Float),
    Column("began_at_s", Float),
    Column("state_since_s", Float),
    *(Column(name, LargeBinary) for name in _BYTES_OF_A_ROUND),
)

answers = Table(
    "answers",
    METADATA,
    *_of_an_attempt(),
    Column("kind", String(20), primary_key=True),
    Column("request_digest", String(64), nullable=False),
    Column("body", LargeBinary, nullable=False),
)

contributions = Table(
    "contributions",
    METADATA,
    *_of_an_attempt(),
    Column("site", String(63), primary_key=True),
    Column("header", LargeBinary, nullable=False),
    Column("body_digest", String(64), nullable=False),
    Column("receipt", LargeBinary, nullable=False),
    Column("file", Text),
    Column("wrapped_key", LargeBinary),
    Column("chunk_tags", LargeBinary),
)

mail = Table(
    "mail",
    METADATA,
    Column("study", ForeignKey("studies.digest"), primary_key=True),
    Column("sender", String(63), primary_key=True),
    Column("recipient", String(63), primary_key=True),
    Column("topic", String(63), primary_key=True),
    Column("body_digest", String(64), nullable=False),
    Column("file", Text, nullable=False),
)

correlations = Table(
    "correlations",
    METADATA,
    Column("session", String(64), primary_key=True),
    Column("batch", Integer, primary_key=True),
    Column("index", Integer, primary_key=True),
    Column("study", String(64), nullable=False),
    Column("round", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("site", String(63), nullable=False),
    UniqueConstraint("study", "round", "attempt", "site", name="one_correlation_a_site"),
)

nonces = Table(
    "nonces",
    METADATA,
    Column("party", String(63), primary_key=True),
    Column("nonce", String(64), primary_key=True),
    Column("seen_at_s", Float, nullable=False, index=True),
)

refusals = Table(
    "refusals",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("study", String(64), nullable=False),
    Column("party", String(63), nullable=False),
    Column("code", String(40), nullable=False),
    Column("detail", Text, nullable=False),
    Column("at_s", Float, nullable=False),
)
