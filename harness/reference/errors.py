"""Every error code: what it means, where it is answered over HTTP, and its usual cause."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from harness.reference.markdown import first_paragraph, page, table
from protocol import errors
from protocol.errors import ErrorCode, MoietyError
from servers.http.problems import PROBLEMS

_OPERATING: Final = Path(__file__).parents[2] / "docs" / "operating.md"


def errors_page() -> str:
    """The reference of error codes."""
    kinds = {kind.code: kind for kind in vars(errors).values() if _has_code(kind)}
    causes = usual_causes(_OPERATING.read_text(encoding="utf-8"))
    rows = [
        (f"`{code.value}`", _status(code), _meaning(code, kinds[code]), causes.get(code.value, ""))
        for code in ErrorCode
        if code in kinds
    ]
    return page(
        "Error codes",
        "Every refusal has a code, which stays the same, and a text that says what was found, what is allowed and what "
        "to do. A command that is refused prints both and ends with status 2 (`--json`: as JSON); a server answers "
        "them as a problem document, with the status given here.",
        table(["code", "status", "meaning", "usual cause"], rows),
    )


def usual_causes(operating: str) -> dict[str, str]:
    """Code -> cause, from the table of docs/operating.md, whose rows name one code or several."""
    rows = operating.split("| code | usual cause |")[1].split("\n\n", maxsplit=1)[0].splitlines()[2:]
    told = (row.strip("| ").split(" | ", 1) for row in rows)
    return {code: cause for codes, cause in told for code in re.findall(r"`(\w+)`", codes)}


def _has_code(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, MoietyError) and "code" in vars(kind)


def _meaning(code: ErrorCode, kind: type[MoietyError]) -> str:
    return first_paragraph(vars(kind).get("__doc__")).replace("``", "`") or PROBLEMS[code].title


def _status(code: ErrorCode) -> str:
    return str(PROBLEMS[code].status)
