"""Whose database it is"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "owner",
        sa.Column("kind", sa.String(63), primary_key=True),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("federation", sa.String(63), nullable=False),
    )
