"""Does a site's table fit the study's schema? Read once, batch by batch; nothing of it is kept."""

from __future__ import annotations

from dataclasses import dataclass

from client_agent.data.findings import Finding, Findings, Problem
from client_agent.data.match import require_named
from client_agent.data.rows import read_rows
from client_agent.data.site_table import SiteTable
from client_agent.data.source import Table
from client_agent.data.split import patient_ids
from client_agent.data.tally import Tally
from protocol.errors import ConfigurationError
from protocol.messages.control import TableSchema


@dataclass(frozen=True)
class Report:
    """``rows`` that could be read and are not left out, and everything that was found."""

    rows: int
    findings: tuple[Finding, ...]

    @property
    def fits(self) -> bool:
        return not any(finding.problem.stops for finding in self.findings)


def report_of(rows: int, findings: Findings) -> Report:
    """Found up to now; what stops first."""
    return Report(rows, tuple(sorted(findings, key=lambda finding: not finding.problem.stops)))


def require_fit(report: Report, where: str) -> None:
    """Raises: ConfigurationError with everything that is wrong"""
    if not report.fits:
        lines = [finding.text for finding in report.findings if finding.problem.stops]
        raise ConfigurationError(f"{where} does not fit the study's schema:\n" + "\n".join(lines))


def check(
    schema: TableSchema,
    table: Table,
    site: SiteTable,
    findings: Findings,
    *,
    test: Table | None = None,
    outcomes_differ: bool = True,
) -> Report:
    """Find the faults of a table or, where the site has split it already, of its training and test tables."""
    require_named(schema, table, test)
    tally = Tally(schema, findings, outcomes_differ=outcomes_differ)
    seen: set[str] = set()
    for rows in tally.through(read_rows(schema, table, site, findings)):
        ids = patient_ids(schema, rows)
        if test is not None and ids is not None:
            seen |= set(ids.tolist())
    both: set[str] = set()
    if test is not None:
        findings.table = test.where
        for rows in tally.through(read_rows(schema, test, site, findings)):
            ids = patient_ids(schema, rows)
            both |= set() if ids is None else seen & set(ids.tolist())
    findings.table = ""
    tally.close()
    check_sides(len(both), findings)
    return report_of(tally.rows, findings)


def check_sides(patients: int, findings: Findings) -> None:
    """``patients`` have rows in the training table and in the test table."""
    if patients:
        findings.add(
            Problem.BOTH_SIDES,
            "",
            f"{patients} patients have rows in both files, so the test would flatter the model: give one file and let "
            "'moiety data prepare' split it",
        )
