"""Tags of a stored share's chunks, which every later reader compares"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("contributions", sa.Column("chunk_tags", sa.LargeBinary(), nullable=True))
