"""``moiety data``: a site's table becomes the folder that its agent reads.

What a command needs is imported when it runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_agent.cli.tables import json_line
from host.files import UMASK
from protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from client_agent.data.prepare import Prepared, Report, Tables
    from client_agent.data.source import Table
    from protocol.messages.control import TableSchema

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

SiteOption = Annotated[
    Path | None, typer.Option("--site", help="TOML: this site's separator, encoding, names of columns and units.")
]


@app.callback()
def _data() -> None:
    """Check a table, and make the folder that this site's agent reads; nothing leaves this machine."""
    os.umask(UMASK)


@app.command(name="schema")
def schema_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV or Parquet.")],
    target: Annotated[str | None, typer.Option(help="The column to predict; without it the last one.")] = None,
    site: SiteOption = None,
    header: Annotated[bool | None, typer.Option(help="Whether the first line has names; without it, guessed.")] = None,
) -> None:
    """Print a first draft of a study's [schema], for a person to edit.

    Example: moiety data schema table.csv --target outcome
    """
    from client_agent.data.draft import draft
    from client_agent.data.site_table import read_site_table

    sys.stdout.write(draft(file, read_site_table(site, None), target, header=header))


@app.command(name="prepare")
def prepare_command(
    study: Annotated[Path, typer.Option("--study", help="The study or case file, with a [schema].")],
    out: Annotated[Path | None, typer.Option("--out", help="The site's data folder.")] = None,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="CSV or Parquet; none where the study's query makes the table."),
    ] = None,
    site: SiteOption = None,
    database: Annotated[
        Path | None,
        typer.Option("--database", help="File with the database's address; or MOIETY_DATABASE_URL holds it."),
    ] = None,
    test: Annotated[Path | None, typer.Option("--test", help="The test part, where the site has split it.")] = None,
    scaling: Annotated[Path | None, typer.Option(help="The common scale that a study's summary gave.")] = None,
    one_outcome: Annotated[
        bool, typer.Option("--one-outcome", help="That this site has one class only, or no events, is right.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the table only: columns and rows that do not fit, no values.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="What --dry-run found, as JSON.")] = False,
) -> None:
    """Make the site's data folder from a table that fits.

    It holds the examples, the transformation for new patients, and the columns as they were read. With --dry-run:
    status 1 when the table does not fit.

    Example: moiety data prepare table.csv --study study.toml --out data
    """
    from client_agent.data.prepare import check, prepared, write
    from host.settings import read_text
    from protocol.summary.table_one import parse_scaling

    schema = _schema(study)
    tables = _tables(schema, file, database, site, test, one_outcome)
    if dry_run:
        report = check(schema, tables)
        _print_report(report, tables.training.where, json_output=json_output)
        if not report.fits:
            raise typer.Exit(1)
        return
    if out is None or json_output:
        raise ConfigurationError("name the folder to make with --out, or check only: --dry-run, where --json belongs")
    common = None if scaling is None else parse_scaling(read_text(scaling).encode(), str(scaling))
    made = prepared(schema, tables, common)
    write(out, made)
    _print_prepared(schema, out, made)


def _schema(study: Path) -> TableSchema:
    from client_agent.learning.study_file import parse_schema
    from host.settings import read_text

    schema = parse_schema(read_text(study), str(study))
    if schema is None:
        raise ConfigurationError(
            f"{study}: no [schema]; 'moiety data schema FILE' proposes one (docs/preparing_data.md)"
        )
    return schema


def _tables(
    schema: TableSchema,
    file: Path | None,
    database: Path | None,
    site: Path | None,
    test: Path | None,
    one_outcome: bool,
) -> Tables:
    from client_agent.data.findings import Findings
    from client_agent.data.prepare import Tables
    from client_agent.data.site_table import read_site_table
    from client_agent.data.source import open_table

    written, findings = read_site_table(site, schema), Findings()
    if file is not None and database is not None:
        raise ConfigurationError("give a file or a database, not both")
    if file is not None:
        table = open_table(file, written, findings, header=schema.header)
    elif schema.query:
        table = _query_table(schema.query, database)
    else:
        raise ConfigurationError("which table? Give a CSV or Parquet file: the study's schema has no query")
    apart = None if test is None else open_table(test, written, findings, header=schema.header)
    return Tables(table, written, findings, apart, outcomes_differ=not one_outcome)


def _query_table(query: str, address: Path | None) -> Table:
    try:
        from client_agent.data.database import database_url, query_table
    except ModuleNotFoundError:
        raise ConfigurationError("a database as source needs SQLAlchemy: pip install 'moiety[sql]'") from None
    return query_table(query, database_url(address))


def _print_report(report: Report, where: str, *, json_output: bool) -> None:
    if json_output:
        found = [
            {
                "problem": finding.problem.value,
                "stops": finding.problem.stops,
                "table": finding.table,
                "column": finding.column,
                "rows": finding.rows,
                "first_rows": finding.first,
                "detail": finding.detail,
            }
            for finding in report.findings
        ]
        json_line({"fits": report.fits, "rows": report.rows, "findings": found})
        return
    for finding in report.findings:
        sys.stdout.write(f"{'wrong' if finding.problem.stops else 'remark'}: {finding.text}\n")
    verdict = "fits the study's schema" if report.fits else "does not fit the study's schema"
    sys.stdout.write(f"{where} {verdict}: {report.rows} rows read\n")


def _print_prepared(schema: TableSchema, out: Path, made: Prepared) -> None:
    for remark in made.remarks:
        sys.stdout.write(f"remark: {remark.text}\n")
    data = made.data
    validation = "" if data.validation is None else f", {len(data.validation)} to validate"
    sys.stdout.write(
        f"{out}: {len(data.train)} rows to train on, {len(data.test)} to test on{validation}, "
        f"{len(schema.feature_names)} features\nschema {schema.digest()}\n"
        f"transformation {made.transformation.digest}\n"
    )
    if schema.query:
        sys.stdout.write(f"query {hashlib.sha256(schema.query.encode()).hexdigest()}\n")
