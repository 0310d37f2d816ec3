"""Rounds whose sums have noise of the servers: what a server's own part is drawn from"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rounds", sa.Column("noise_secret", sa.LargeBinary(), nullable=True))
