"""The page on the leak: what a server that falsifies products reads from who stays in the sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.adversaries.falsified_round import Question, most_bits
from harness.adversaries.leak import ROUNDS, Asked, Leaked, LeakLine, leaked
from harness.papers.attacked.leak_runs import CANARIES, LENGTHS, SEEDS, recorded, run_missing
from harness.papers.making import Making
from harness.papers.page import Page
from protocol.policy.clauses import TIMES_LEFT_OUT

_ASKED: Final = {
    Question.NORM: "is its norm above a number (FedAvg with a norm bound)",
    Question.PROJECTION: "is a random projection of it below a number (any rule, nothing opened)",
    Question.GAP: "is a gap between multi-Krum's scores above a number",
}
_INTRODUCTION: Final = (
    "A server that deviates can put something else into the products than it should. What comes back to it of a "
    "measured round is who stays in the sum. So every round answers one question of its choice about each site by yes "
    "or no ([decision 26](../adr/0026-falsified-products-stay-open.md) says how, and what closing it would cost). Here "
    "it asks in every round of a study, as cleverly as we know: by two plans, of which the better one in the mean "
    "counts. *Plan one* spends its failures as if a site bore two, *plan two* asks as if it bore any number. Sketches, "
    "products, shares, the requester's judgement and the site's clause are the product's own. Five contributors, 60 "
    "parameters, updates that are the same in every round, which is the worst case: updates that move tell less."
)
_CLAUSE: Final = (
    "**What the clause does.** A no leaves the site out with a failed check that all sites see; the site knows that "
    "its update was in range, and after two of them it takes part no more (`left_out_twice`). So of R rounds there are "
    "at most 1 + R + R(R-1)/2 sequences of answers. Under multi-Krum being left out is what the rule does, the clause "
    "is off, and nothing bounds the bits but the rounds. An answer that had a chance below a half beforehand "
    "tells more than one bit, and another one less. *Bits*: mean and standard deviation over 40 seeds."
)
_CANARIES: Final = (
    "**With canary rounds, which are not built.** In a canary round updates are made up and the requester knows what "
    "has to be opened; which rounds these are the server cannot tell. Here such a round ends the study if anything "
    "else is opened. A falsified norm or pair always is something else. **A raised projection is something else only "
    "where the check fails**: a server that asks questions that nearly always pass, which is the plan against the "
    "clause, is seldom caught by canaries. The plan is the one that tells most with them: against many canaries it "
    "asks in few rounds. *Expected*: 1 - (1 - c)^n of the studies, for the n rounds that this plan asks in without "
    "canaries, which would be right if every question showed."
)
_WHAT_IT_MEANS: Final = (
    "**What a bit is.** A yes or no about a number of the server's choice: about one coordinate in a direction that "
    "is drawn in every round, a norm, or a gap between scores. Nine bits are a norm to 0.2 %; they are no update, "
    "which has as many numbers as the model has parameters."
)


@dataclass(frozen=True)
class LeakPage:
    """Runs, counts and writes; see :class:`harness.papers.build.PageSpec`."""

    name: str
    title: str

    def run_missing(self, making: Making) -> None:
        """Every study that is not there yet; one process."""
        run_missing(making.runs, making.tell)

    def write_page(self, runs: Path, out: Path, data: Path | None) -> Path:
        """The page from the recorded lines. Returns the file."""
        page = Page(out / f"{self.name}.md", self.title)
        lines = recorded(runs)
        page.text(_INTRODUCTION)
        if not lines:
            page.text("**Not run yet:** 0 runs.")
        _by_clause(page, lines)
        _by_length(page, lines)
        _by_canaries(page, lines)
        page.text(_WHAT_IT_MEANS)
        page.heading("How this page was made")
        _made(page, lines)
        page.write()
        return page.path


def _by_clause(page: Page, lines: Sequence[LeakLine]) -> None:
    page.heading(f"Bits about one site in {ROUNDS} rounds")
    page.text(_CLAUSE)
    rows = []
    for question, words in _ASKED.items():
        found, without = leaked(lines, Asked(question)), leaked(lines, Asked(question, clause=False))
        asked, failed = (None, None) if found is None else (found.asked, found.failed)
        rows.append((words, _bits(found), _number(asked), _number(failed), _bits(without)))
    page.table(("question", "bits", "rounds asked in", "failed checks", "bits without the clause"), rows)


def _by_length(page: Page, lines: Sequence[LeakLine]) -> None:
    page.heading("In longer and shorter studies")
    page.text(
        "*At most*: the logarithm of the number of sequences with two failures, whatever is asked. A gap has some "
        "57 bits at the precision of the opened numbers; then there is nothing left to ask."
    )
    most = ("at most, with the clause", *(f"{most_bits(rounds, TIMES_LEFT_OUT):.1f}" for rounds in LENGTHS))
    rows = [
        (words, *(_bits(leaked(lines, Asked(question, rounds=rounds))) for rounds in LENGTHS))
        for question, words in _ASKED.items()
    ]
    page.table(("question", *(f"{rounds} rounds" for rounds in LENGTHS)), [*rows, most])


def _by_canaries(page: Page, lines: Sequence[LeakLine]) -> None:
    page.heading("With canary rounds")
    page.text(_CANARIES)
    rows = [
        (words, _share(share), *_caught(lines, question, share))
        for question, words in _ASKED.items()
        for share in CANARIES
    ]
    page.table(("question", "canaries", "bits before it is caught", "studies in which it is", "expected"), rows)


def _caught(lines: Sequence[LeakLine], question: Question, share: float) -> tuple[str, str, str]:
    """Bits, how often the server was caught, and how often it would be if every question showed."""
    found = leaked(lines, Asked(question, canaries=share))
    without = None if found is None else leaked(lines, Asked(question), found.failures)
    if found is None or without is None:
        return "not run", "", ""
    expected = found.seeds * (1 - (1 - share) ** without.asked)
    return str(found), f"{found.caught} of {found.seeds}", f"{expected:.0f} of {found.seeds}"


def _bits(found: Leaked | None) -> str:
    return "not run" if found is None else str(found)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _share(share: float) -> str:
    return f"1 of {1 / share:.0f}" if share else "none"


def _made(page: Page, lines: Sequence[LeakLine]) -> None:
    versions = sorted({f"{name} {version}" for line in lines for name, version in line.versions.items()})
    hours = sum(line.seconds for line in lines) / 3600
    page.text(
        "```sh\n"
        "moiety results --only leak\n"
        f"moiety attack leak --seeds {SEEDS[0]}-{SEEDS[-1]}                     # the first table\n"
        f"moiety attack leak --seeds {SEEDS[0]}-{SEEDS[-1]} --without-clause\n"
        f"moiety attack leak --seeds {SEEDS[0]}-{SEEDS[-1]} --canaries 1/10\n"
        "```\n\n"
        f"{len(lines)} studies, {hours:.1f} hours of one core. Every line is in `results-out/leak`. "
        f"{', '.join(versions)}."
    )
