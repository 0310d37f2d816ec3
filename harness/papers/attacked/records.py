"""The privacy page's part about records that are read out of an opened average."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Final

from harness.adversaries.inverting.lines import How, InversionLine, Inverted
from harness.adversaries.inverting.matching import CLOSE, EXACT, RECOGNISED
from harness.adversaries.inverting.targets import TARGETS, Target
from harness.papers.attacked.records_runs import BATCHES, SITES
from harness.papers.charts import Line, LinesPanel, lines_chart
from harness.papers.page import Page
from harness.simulate.charts import Spread, number

_INTRODUCTION: Final = (
    "An average of gradients is made of records. With how many records in it can single ones be read out again? "
    "`rows`: the first dense layer's gradient by weights over that by biases, exact wherever a unit saw one record "
    "only (Phong et al. 2018). `descent`: records are changed until their gradient is the average (Zhu et al. 2019; "
    "for images by angle and with total variation, Geiping et al. 2020), 300 steps, one start; the attacker is given "
    "all labels. `guess`: as many guesses by somebody who never saw the average: other patients' records, or records "
    "whose every column is drawn by itself, whichever does better. The first model of a study, gradients of one batch "
    "per site, the requester's own part taken out; sites have equal weights, so the average over n sites of batches of "
    "b is that of n b records. A true record is held against the candidate that is nearest to it, which says most in "
    "the attacker's favour.\n\n"
    f"*Exactly*: every column within {EXACT:g} standard deviations (images: every pixel within {EXACT:g} of its "
    f"range). *Closely*: columns within {CLOSE:g} standard deviations, root mean square; images: PSNR of at least "
    f"{RECOGNISED:g} dB. Means over five seeds."
)
_PLAIN: Final = [target for target in TARGETS if target.privacy is None]
_NOISED: Final = (
    "**Under noise that covers records** ([protocol, section 19](../protocol.md)): every record's gradient is clipped "
    "to 1, and every site adds noise of 0.1 or 1 times that before it divides by its batch. Share of records read "
    "closely, rows / descent / guess:"
)
_LESSONS: Final = (
    "What the tables say:\n\n"
    "- **A record that is alone in an average is read exactly,** from every model whose first layer is dense, linear "
    "ones too; from convolutions it is read closely, by descent.\n"
    "- **What counts is how many records are in the sum,** not how many hospitals they come from: eight sites with "
    "one record each fare as one with a batch of eight.\n"
    "- **A linear model of two classes gives one weighted mean away,** which is a record only where there is one: out "
    "of two or more records next to none is read.\n"
    "- **Every unit of a dense first layer is a chance for a record.** With 64 units nine of ten records of tables "
    "are read exactly out of four, a quarter to a half out of eight, and none out of 32; with 144 units seven of ten "
    "images out of eight, 14 to 19 % out of 32, and still one in a hundred out of 256.\n"
    "- **From 32 to 64 records of a table on, guessing does as well as either attack:** what comes near by then does "
    "not come from the sum. For images that is so from 64 (MNIST) or 256 (digits) on, but for those that are exact.\n"
    "- **Noise on records ends it at once:** a tenth of a clipped gradient's length, which guarantees next to "
    "nothing, leaves nothing to either attack that a guess would not find, even where a record is alone.\n"
    "- **These attacks are not the best there are:** few steps, one start, nothing known of how records look. And "
    "these are models as they begin; a requester that could craft one would read more, which is why sites derive the "
    "first model themselves (`moiety attack model-steered` and [the threat model](../threat_model.md) say what is "
    "left)."
)


def write(page: Page, lines: Sequence[InversionLine]) -> None:
    """Tables and a figure; what has not run is named."""
    page.heading("Can a record be read out of a sum?")
    page.text(_INTRODUCTION)
    if not lines:
        page.text("**Not run yet:** 0 runs.")
        return
    _figure(page, lines)
    page.text("**Share of records read exactly**: rows / descent / guess")
    _table(page, lines, _PLAIN, lambda found: number(found.exact))
    page.text("**Share of records read closely**: rows / descent / guess")
    _table(page, lines, _PLAIN, lambda found: number(found.close))
    page.text("**Images: PSNR in dB (SSIM)**: rows / descent / guess")
    _table(page, lines, [one for one in _PLAIN if one.is_image], _quality)
    page.text(_NOISED)
    _table(page, lines, [one for one in TARGETS if one.privacy is not None], lambda found: number(found.close))
    page.text(_LESSONS)


def share(lines: Sequence[InversionLine], target: str, sites: int, batch: int, *, exact: bool) -> float | None:
    """What the better of both attacks reads, the mean over seeds; None where nothing has run."""
    found = _of(lines, target, sites, batch)
    if not found:
        return None
    return max(mean(_share(line.by(how), exact=exact) for line in found) for how in (How.ANALYTIC, How.OPTIMISED))


def _share(found: Inverted, *, exact: bool) -> float:
    return found.exact if exact else found.close


def _of(lines: Sequence[InversionLine], target: str, sites: int, batch: int) -> list[InversionLine]:
    return [line for line in lines if (line.target, line.sites, line.batch) == (target, sites, batch)]


def _table(
    page: Page, lines: Sequence[InversionLine], targets: Sequence[Target], cell: Callable[[Inverted], str]
) -> None:
    rows = []
    for target in targets:
        for batch in BATCHES:
            cells = [_three(_of(lines, target.key, sites, batch), cell) for sites in SITES]
            rows.append((target.title, str(batch), *cells))
    page.table(("data and model", "batch", *(f"{sites} site{'s' * (sites > 1)}" for sites in SITES)), rows)


def _three(found: Sequence[InversionLine], cell: Callable[[Inverted], str]) -> str:
    return " / ".join(cell(averaged([line.by(how) for line in found])) for how in How) if found else "not run"


def averaged(found: Sequence[Inverted]) -> Inverted:
    """The mean over seeds. Requires: one at least"""
    first = found[0]
    return Inverted(
        how=first.how,
        candidates=first.candidates,
        exact=mean(one.exact for one in found),
        close=mean(one.close for one in found),
        noise=None if first.noise is None else mean(one.noise or 0.0 for one in found),
        alike=None if first.alike is None else mean(one.alike or 0.0 for one in found),
    )


def _quality(found: Inverted) -> str:
    if not found.candidates or found.noise is None or found.alike is None:
        return "-"
    return f"{found.noise:.1f} ({number(found.alike, 2)})"


def _figure(page: Page, lines: Sequence[InversionLine]) -> None:
    panels = []
    for target in _PLAIN:
        of_target = [line for line in lines if line.target == target.key]
        sizes = tuple(sorted({line.sites * line.batch for line in of_target}))
        if sizes:
            panels.append(LinesPanel(target.title, tuple(_line(of_target, how, sizes) for how in How)))
    caption = "Share of records read closely, by the number of records in the sum; mean and standard error over runs."
    page.figure("records", lines_chart(panels, "records in the sum", "read closely"), caption)


def _line(lines: Sequence[InversionLine], how: How, sizes: tuple[int, ...]) -> Line:
    names = {How.ANALYTIC: "rows", How.OPTIMISED: "descent", How.GUESSED: "guess"}
    spreads = [Spread.of(line.by(how).close for line in lines if line.sites * line.batch == size) for size in sizes]
    return Line(names[how], sizes, tuple(spreads), dashed=how is How.GUESSED)
