"""Shares that lie encrypted where a cluster's workers read them: the wrapped key of each"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("contributions", sa.Column("wrapped_key", sa.LargeBinary(), nullable=True))
