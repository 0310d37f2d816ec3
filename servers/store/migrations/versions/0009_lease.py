"""Which of a server's processes drives its rounds, and until when"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    lease = op.create_table(
        "lease",
        sa.Column("place", sa.Integer(), primary_key=True),
        sa.Column("boot", sa.Integer(), nullable=True),
        sa.Column("holder", sa.String(200), nullable=True),
        sa.Column("folder", sa.String(64), nullable=True),
        sa.Column("until_s", sa.Float(), nullable=False),
    )
    op.bulk_insert(lease, [{"place": 1, "until_s": 0.0}])
