"""The tables as of revision 0009, the oldest that an existing database may have"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = None
branch_labels = None
depends_on = None


def _attempt() -> tuple[sa.Column[Any], ...]:
    numbers = (sa.Column(name, sa.Integer(), nullable=False) for name in ("round", "attempt"))
    return (sa.Column("study", sa.String(length=64), nullable=False), *numbers)


def _bytes(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.LargeBinary(), nullable=True) for name in names]


def upgrade() -> None:
    op.create_table(
        "boots", sa.Column("boot", sa.Integer(), autoincrement=True, nullable=False), sa.PrimaryKeyConstraint("boot")
    )
    op.create_table(
        "correlations",
        sa.Column("session", sa.String(length=64), nullable=False),
        sa.Column("batch", sa.Integer(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        *_attempt(),
        sa.Column("site", sa.String(length=63), nullable=False),
        sa.PrimaryKeyConstraint("session", "batch", "index"),
        sa.UniqueConstraint("study", "round", "attempt", "site", name="one_correlation_a_site"),
    )
    op.create_table(
        "nonces",
        sa.Column("party", sa.String(length=63), nullable=False),
        sa.Column("nonce", sa.String(length=64), nullable=False),
        sa.Column("seen_at_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("party", "nonce"),
    )
    op.create_index(op.f("ix_nonces_seen_at_s"), "nonces", ["seen_at_s"], unique=False)
    op.create_table(
        "refusals",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("party", sa.String(length=63), nullable=False),
        sa.Column("code", sa.String(length=40), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "studies",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("signed", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("cursor", sa.Integer(), nullable=False),
        sa.Column("absent_in_a_row", sa.Integer(), nullable=False),
        sa.Column("end", sa.LargeBinary(), nullable=True),
        sa.Column("created_at_s", sa.Float(), nullable=True),
        sa.Column("stranded_by", sa.String(length=63), nullable=True),
        sa.PrimaryKeyConstraint("digest"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "answers",
        *_attempt(),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("request_digest", sa.String(length=64), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["study"], ["studies.digest"]),
        sa.PrimaryKeyConstraint("study", "round", "attempt", "kind"),
    )
    op.create_table(
        "contributions",
        *_attempt(),
        sa.Column("site", sa.String(length=63), nullable=False),
        sa.Column("header", sa.LargeBinary(), nullable=False),
        sa.Column("body_digest", sa.String(length=64), nullable=False),
        sa.Column("receipt", sa.LargeBinary(), nullable=False),
        sa.Column("file", sa.Text(), nullable=True),
        sa.Column("wrapped_key", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["study"], ["studies.digest"]),
        sa.PrimaryKeyConstraint("study", "round", "attempt", "site"),
    )
    op.create_table(
        "mail",
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("sender", sa.String(length=63), nullable=False),
        sa.Column("recipient", sa.String(length=63), nullable=False),
        sa.Column("topic", sa.String(length=63), nullable=False),
        sa.Column("body_digest", sa.String(length=64), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["study"], ["studies.digest"]),
        sa.PrimaryKeyConstraint("study", "sender", "recipient", "topic"),
    )
    op.create_table(
        "ready_sites",
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("site", sa.String(length=63), nullable=False),
        sa.Column("since_s", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["study"], ["studies.digest"]),
        sa.PrimaryKeyConstraint("study", "site"),
    )
    op.create_table(
        "rounds",
        *_attempt(),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("announcement", sa.LargeBinary(), nullable=False),
        sa.Column("closes_at_s", sa.Float(), nullable=False),
        *_bytes("agreed_set", "own_nonce"),
        sa.Column("peer_commitment", sa.String(length=64), nullable=True),
        *_bytes("transcript", "query_header"),
        sa.Column("query_digest", sa.String(length=64), nullable=True),
        sa.Column("query_file", sa.Text(), nullable=True),
        *_bytes("release_set", "mask_seed"),
        sa.Column("output_file", sa.Text(), nullable=True),
        *_bytes("outcome", "sum_release", "commitment", "tag_seed", "tag_check", "go", "tags_failed"),
        sa.Column("committed_at_s", sa.Float(), nullable=True),
        sa.Column("began_at_s", sa.Float(), nullable=True),
        sa.Column("state_since_s", sa.Float(), nullable=True),
        sa.Column("noise_secret", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["study"], ["studies.digest"]),
        sa.PrimaryKeyConstraint("study", "round", "attempt"),
    )
    op.create_table(
        "owner",
        sa.Column("kind", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("federation", sa.String(length=63), nullable=False),
        sa.PrimaryKeyConstraint("kind"),
    )
    history = op.create_table(
        "history",
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("changes", sa.BigInteger(), nullable=False),
        sa.Column("began", sa.BigInteger(), nullable=True),
        sa.Column("restored_at_s", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("place"),
    )
    op.bulk_insert(history, [{"place": 1, "changes": 0, "restored_at_s": 0}])
    op.create_table(
        "histories",
        sa.Column("party", sa.String(length=63), nullable=False),
        sa.Column("signed", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("party"),
    )
    lease = op.create_table(
        "lease",
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("boot", sa.Integer(), nullable=True),
        sa.Column("holder", sa.String(length=200), nullable=True),
        sa.Column("folder", sa.String(length=64), nullable=True),
        sa.Column("until_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("place"),
    )
    op.bulk_insert(lease, [{"place": 1, "until_s": 0.0}])
