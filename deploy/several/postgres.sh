#!/bin/sh
# Begins as root, hands the data folder to PostgreSQL's user and becomes it; makes the database at its first start.
set -eu
programs=$(echo /usr/lib/postgresql/*/bin)
as() { setpriv --reuid=postgres --regid=postgres --init-groups --inh-caps=-all "$@"; }
install -d -o postgres -g postgres -m 0700 "$PGDATA"
chown postgres:postgres /var/run/postgresql
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  password=$(mktemp)
  cp "$POSTGRES_PASSWORD_FILE" "$password" && chown postgres "$password"
  as "$programs/initdb" --username="$POSTGRES_USER" --pwfile="$password" --auth=scram-sha-256 --encoding=UTF8 --locale=C
  rm "$password"
  printf 'CREATE DATABASE "%s";\n' "$POSTGRES_DB" | as "$programs/postgres" --single -D "$PGDATA" postgres
  echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
fi
exec setpriv --reuid=postgres --regid=postgres --init-groups --inh-caps=-all --no-new-privs \
  "$programs/postgres" -D "$PGDATA" -c listen_addresses='*' "$@"
