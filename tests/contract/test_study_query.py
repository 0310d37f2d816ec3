"""A study's query on a site's own PostgreSQL: only a role that reads tables alone may run it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import make_url

from client_agent.data.database import query_table
from protocol.errors import ConfigurationError
from tests.kit.postgres import Cluster, InPostgreSQL

PREPARING = Path(__file__).parents[2] / "docs" / "preparing_data.md"
FILES = "member of pg_read_server_files"
REACHING = {
    "site_owner": ("ALTER ROLE site_owner SUPERUSER", "is a superuser"),
    "site_files": ("GRANT pg_read_server_files TO site_files", FILES),
    # A query can take another role: SELECT set_config('role', 'site_files', false).
    "site_changing": ("GRANT site_files TO site_changing; ALTER ROLE site_changing NOINHERIT", FILES),
    "site_calling": ("GRANT EXECUTE ON FUNCTION pg_read_file(text) TO site_calling", "may call pg_read_file"),
    "site_all": ("GRANT pg_read_all_data TO site_all", "may read passwords in pg_authid"),
    "site_watching": ("GRANT pg_monitor TO site_watching", "is a member of pg_monitor"),
    "site_fetching": (
        "CREATE FUNCTION omop.http_get(text) RETURNS text LANGUAGE sql AS 'SELECT $1'; "
        "REVOKE EXECUTE ON FUNCTION omop.http_get FROM PUBLIC; GRANT USAGE ON SCHEMA omop TO site_fetching; "
        "GRANT EXECUTE ON FUNCTION omop.http_get TO site_fetching",
        "may call http_get",
    ),
    "site_replica": ("ALTER ROLE site_replica REPLICATION", "may replicate"),
}


def read_by(role: str, url: str, query: str) -> list[object]:
    batches = query_table(query, url.replace("postgres@", f"{role}@")).batches
    return [value for batch in batches for column in batch.columns for value in column.to_pylist()]


def test_a_role_that_reaches_beyond_tables_is_refused_with_what_to_type(cluster: Cluster, tmp_path: Path) -> None:
    url = cluster.new_database()
    secret = tmp_path / "keys.toml"
    secret.write_text("tr0ub4dor")
    with InPostgreSQL(url) as owner:
        owner.execute("CREATE SCHEMA omop; CREATE TABLE omop.person AS SELECT 7 AS person_id")
        for role, (granted, _) in REACHING.items():
            owner.execute(f"CREATE ROLE {role} LOGIN; ALTER ROLE {role} SET search_path = omop; {granted}")
        typed = []
        for role, (_, why) in REACHING.items():
            with pytest.raises(ConfigurationError, match=re.escape(why)) as refused:
                read_by(role, url, f"SELECT pg_read_file('{secret}')")
            typed.append(refused.value.detail.partition("\n")[2])
        shown = typed[0].replace(str(make_url(url).database), "omop").replace("SCHEMA omop", "SCHEMA public")
        assert f"```sql\n{shown}\n```" in PREPARING.read_text()
        owner.execute(typed[0])
        owner.execute("ALTER ROLE moiety_reader SET search_path = omop")
        assert read_by("moiety_reader", url, "SELECT person_id FROM person; -- everybody") == [7]
        with pytest.raises(ConfigurationError, match="permission denied for function pg_read_file"):
            read_by("moiety_reader", url, f"SELECT pg_read_file('{secret}')")
        owner.execute("DROP OWNED BY moiety_reader; DROP ROLE moiety_reader")
