"""Noise of the servers is gone, and with it the secrets that it was drawn from"""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_column("rounds", "noise_secret")
