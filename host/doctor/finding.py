"""What a look at one thing came to, with what to do about it; as text and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict

from protocol.errors import MoietyError
from protocol.printable import printable


class Verdict(StrEnum):
    """How it is."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Finding(BaseModel):
    """``check`` was looked at and ``found``; ``fix`` is the next step where the verdict is not ok."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    check: str
    verdict: Verdict
    found: str
    fix: str = ""


class Report(BaseModel):
    """All findings, in the order in which they were looked at."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    of: str
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing failed; warnings are for later."""
        return all(one.verdict is not Verdict.FAILED for one in self.findings)


_SHOWN: Final = {Verdict.OK: "ok  ", Verdict.WARNING: "WARN", Verdict.FAILED: "FAIL"}


def ok(check: str, found: str) -> Finding:
    return Finding(check=check, verdict=Verdict.OK, found=found)


def warning(check: str, found: str, fix: str) -> Finding:
    return Finding(check=check, verdict=Verdict.WARNING, found=found, fix=fix)


def failed(check: str, found: str, fix: str = "") -> Finding:
    return Finding(check=check, verdict=Verdict.FAILED, found=found, fix=fix)


def looked(check: str, look: Callable[[], str]) -> Finding:
    """What ``look`` says is well; what it refuses is in the error's own words, which name the next step."""
    try:
        return ok(check, look())
    except MoietyError as error:
        return failed(check, error.detail)


def lines(findings: Iterable[Finding]) -> Iterator[str]:
    """One line for each finding, and one for what to do; nothing of another party's text moves the cursor."""
    for one in findings:
        yield f"{_SHOWN[one.verdict]} {one.check}: {printable(one.found)}"
        if one.fix:
            yield f"     -> {printable(one.fix)}"


def show(report: Report, *, json_output: bool) -> bool:
    """To standard output; whether nothing failed."""
    if json_output:
        sys.stdout.write(report.model_dump_json() + "\n")
        return report.healthy
    sys.stdout.write("\n".join(lines(report.findings)) + "\n")
    count = sum(one.verdict is Verdict.FAILED for one in report.findings)
    sys.stdout.write(
        f"{report.of}: " + (f"{count} of {len(report.findings)} failed\n" if count else "nothing failed\n")
    )
    return report.healthy
