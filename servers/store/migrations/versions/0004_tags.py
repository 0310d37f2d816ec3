"""Rounds with tags: what a server commits to, checks, and is told to serve"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("commitment", "tag_seed", "tag_check", "go", "tags_failed"):
        op.add_column("rounds", sa.Column(name, sa.LargeBinary(), nullable=True))
    op.add_column("rounds", sa.Column("committed_at_s", sa.Float(), nullable=True))
