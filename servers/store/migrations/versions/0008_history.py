"""How far a server has come, what it and the other said of that, and which studies an older database left stranded"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    history = op.create_table(
        "history",
        sa.Column("place", sa.Integer(), primary_key=True),
        sa.Column("changes", sa.BigInteger(), nullable=False),
        sa.Column("began", sa.BigInteger(), nullable=True),
        sa.Column("restored_at_s", sa.BigInteger(), nullable=False),
    )
    op.bulk_insert(history, [{"place": 1, "changes": 0, "restored_at_s": 0}])
    op.create_table(
        "histories",
        sa.Column("party", sa.String(63), primary_key=True),
        sa.Column("signed", sa.LargeBinary(), nullable=False),
    )
    op.add_column("studies", sa.Column("stranded_by", sa.String(63), nullable=True))
