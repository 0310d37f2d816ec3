"""No document has commands that no test types: each is walked, or its lines are run by a test that is named here."""

from __future__ import annotations

import pytest

from tests.documents import test_enrolling, test_first_federation, test_researchers_pages
from tests.documents.lines import ROOT, commands_of, documents

WALKED = {
    "docs/releasing.md": "tests/documents/test_releasing.py",
    "docs/preparing_data.md": "tests/documents/test_preparing_data.py",
    **dict.fromkeys(test_enrolling.DOCUMENTS, "tests/documents/test_enrolling.py"),
    **dict.fromkeys(test_first_federation.DOCUMENTS, "tests/documents/test_first_federation.py"),
    **dict.fromkeys(test_researchers_pages.PAGES, "tests/documents/test_researchers_pages.py"),
}
RUN_ELSEWHERE = {
    "docs/operating.md": "tests/deploy/test_operating.py",  # with an engine; it names the tests of the other lines
    "docs/adapters.md": "tests",  # environments of their own, where the packages install
    "CONTRIBUTING.md": "Makefile",  # the targets that run the tests themselves
    "docs/results": "harness/papers",  # printed by the command that ran them and made the page
    "docs/benchmarks": "harness/bench",  # likewise
}


@pytest.mark.parametrize("document", [one for one in documents() if commands_of(one)])
def test_somebody_types_its_commands(document: str) -> None:
    by = WALKED.get(document) or next((at for name, at in RUN_ELSEWHERE.items() if document.startswith(name)), None)
    assert by is not None, f"{document} has commands and no test that types them: add it to a walk in tests/documents"
    assert (ROOT / by).exists()
