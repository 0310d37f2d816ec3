"""Sums of ciphertexts are signed by both servers"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rounds", sa.Column("sum_release", sa.LargeBinary(), nullable=True))
