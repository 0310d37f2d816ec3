"""When a study came, a site became ready, a round began and came to its state: for the operator to read"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("studies", sa.Column("created_at_s", sa.Float(), nullable=True))
    op.add_column("ready_sites", sa.Column("since_s", sa.Float(), nullable=True))
    for name in ("began_at_s", "state_since_s"):
        op.add_column("rounds", sa.Column(name, sa.Float(), nullable=True))
