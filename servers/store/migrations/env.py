"""Alembic's entry: runs on the connection that ``servers.store.migrate`` hands over."""

from __future__ import annotations

from alembic import context

from servers.store.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()
