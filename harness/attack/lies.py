"""Sites that lie about their update to gain weight and then to harm, and what they gain over a whole study.

A liar knows what every listed site knows: the model, the lists, the opened averages, its own honest update and those of
the liars it works with. From an average it takes its own part out: what is left is mostly the requester's update where
the requester has most weight, and what it takes for the requester's last direction.

Two rounds differ. Where updates are measured the lie has to look good; where they are only summed, with norms opened or
nothing, nobody sees what the liar adds. Under rules that measure what they sum it must do both with one vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

import numpy as np

from harness.attack.attacked_study import (
    MEASURED,
    AttackedStudy,
    DeviatingSum,
    Line,
    Reals,
    Released,
    clipped,
    direction_of,
    length_of,
    line_of,
    rounded,
    timed,
)
from harness.engine.updates import RoundInputs
from protocol.shared_model import first_model

Written: TypeAlias = dict[str, Reals]


class Lie(StrEnum):
    """A liar's update where it is measured.

    REVERSED does not try: it sends the harm itself. NEAR has the requester's last known direction and its own length,
    SMALL is a hundredth of its own update, COPY the last average, REPLAY what it takes for the requester's last update,
    OPPOSED a pair of liars at both sides of that, whose mean it is. ORACLE is the requester's update itself, which
    nobody has: what a perfect lie would gain.
    """

    REVERSED = "reversed"
    NEAR = "near"
    SMALL = "small"
    COPY = "copy"
    REPLAY = "replay"
    OPPOSED = "opposed"
    ORACLE = "oracle"


@dataclass(frozen=True, eq=False)
class Seen:
    """A round as colluding liars see it; vectors are float64[D].

    ``own`` are their honest updates, ``average`` the last opened one, ``rest`` that without their own part, both None
    before the first sum that they were in. ``requester`` is the truth, which only ORACLE looks at.
    """

    own: Mapping[str, Reals] = field(repr=False)
    average: Reals | None = field(repr=False)
    rest: Reals | None = field(repr=False)
    requester: Reals = field(repr=False)
    clip_norm: float

    @property
    def harm(self) -> Reals:
        """The direction, of length 1, that raises the liars' own loss the most, as far as they know."""
        return -direction_of(np.sum(list(self.own.values()), axis=0))

    def reach(self, site: str) -> float:
        """Distance of the site's honest update from what it takes for the requester's: nobody expects it nearer."""
        own = self.own[site]
        return length_of(own if self.rest is None else own - self.rest)


def shown(lie: Lie, seen: Seen) -> Written:
    """Return the vectors that liars send where they are measured and not summed."""
    return {site: clipped(vector, seen.clip_norm) for site, vector in _FACES[lie](seen).items()}


def summed(lie: Lie, seen: Seen, *, measured: bool) -> Written:
    """Return what liars send into a sum; ``measured``: distances are opened too, so the harm stays within reach."""
    if not measured or lie is Lie.REVERSED:
        return dict.fromkeys(seen.own, seen.clip_norm * seen.harm)
    faces = _FACES[lie](seen)
    harmful = {site: face + seen.reach(site) * seen.harm for site, face in faces.items()}
    return {site: clipped(vector, seen.clip_norm) for site, vector in harmful.items()}


def _all_send(face: Callable[[Seen], Reals | None]) -> Callable[[Seen], Written]:
    """One vector of all of them; their own honest updates before there is one."""

    def written(seen: Seen) -> Written:
        vector = face(seen)
        return dict(seen.own) if vector is None else dict.fromkeys(seen.own, vector)

    return written


def _near(seen: Seen) -> Written:
    if seen.rest is None:
        return dict(seen.own)
    return {site: length_of(own) * direction_of(seen.rest) for site, own in seen.own.items()}


def _opposed(seen: Seen) -> Written:
    """Place liars at either side by turns, and a single one left over in the middle."""
    if seen.rest is None:
        return dict(seen.own)
    sites, apart = list(seen.own), max(seen.reach(site) for site in seen.own)
    pairs = 2 * (len(sites) // 2)
    sides = [(1 if place % 2 else -1) if place < pairs else 0 for place in range(len(sites))]
    return {site: seen.rest + side * apart * seen.harm for site, side in zip(sites, sides, strict=True)}


_FACES: Final[Mapping[Lie, Callable[[Seen], Written]]] = {
    Lie.REVERSED: _all_send(lambda seen: seen.clip_norm * seen.harm),
    Lie.NEAR: _near,
    Lie.SMALL: lambda seen: {site: 0.01 * own for site, own in seen.own.items()},
    Lie.COPY: _all_send(lambda seen: seen.average),
    Lie.REPLAY: _all_send(lambda seen: seen.rest),
    Lie.OPPOSED: _opposed,
    Lie.ORACLE: _all_send(lambda seen: seen.requester),
}


# --- a study with liars -----------------------------------------------------------------------------------------------

FORMAT: Final = "moiety-lies/1"
_DIGITS: Final = 6


class LyingLine(Line):
    """One study with liars, beside the same study, seed and liars without a lie.

    ``lie`` None is that study itself. ``weight`` is the liars' share of a sum, the mean over released rounds;
    ``moved`` how far the requester's last model is from the honest study's, ``path`` how far that one went from the
    first model. ``log_loss`` is on the requester's test part, ``honest_log_loss`` of the honest study.
    """

    format: str = FORMAT
    study: str
    variant: str
    setting: str
    requester: str
    seed: int
    sites: int
    liars: tuple[str, ...]
    lie: Lie | None
    rule: str
    end: str
    released: int
    clip_norm: float
    weight: float
    moved: float
    path: float
    log_loss: float
    honest_log_loss: float
    seconds: float
    versions: dict[str, str]

    @property
    def harm(self) -> float:
        """The log-loss that the lie cost the requester."""
        return self.log_loss - self.honest_log_loss


class LyingSum(DeviatingSum):
    """Sums what ``sites`` made of their updates; they learn from the averages that they were in.

    None for a lie: all are honest, and only weights are noted.
    """

    def __init__(self, liars: tuple[str, ...], lie: Lie | None) -> None:
        super().__init__(liars)
        self._lie = lie
        self._average: Reals | None = None
        self._rest: Reals | None = None

    def sent(self, own: Mapping[str, Reals], inputs: RoundInputs) -> Mapping[str, Reals]:
        if self._lie is None or not own:
            return own
        seen = Seen(own, self._average, self._rest, inputs.own.values, inputs.clip_norm)
        if not inputs.announcement.purpose.plan.summed:
            return shown(self._lie, seen)
        return summed(self._lie, seen, measured=inputs.announcement.opens in MEASURED)

    def released(self, inputs: RoundInputs, sent: Mapping[str, Reals], opened: Released) -> None:
        super().released(inputs, sent, opened)
        grid = inputs.weight_list.grid
        listed = {one.site: one.numerator / grid for one in inputs.weight_list.weights}
        parts = [(listed[site], sent[site]) for site in sent if site in opened.took_part]
        if not parts:
            return
        self._average = opened.average
        left = opened.sum_of_weights - sum(weight for weight, _ in parts)
        if left > 0:
            others = opened.average * opened.sum_of_weights - sum(weight * vector for weight, vector in parts)
            self._rest = np.asarray(others / left, np.float64)


def lying_lines(of: AttackedStudy, lies: Sequence[Lie], number: int = 1) -> Iterator[LyingLine]:
    """Run a study honestly and under each lie; ``number`` contributors lie, which ones goes by seed.

    Raises: ConfigurationError for data or settings that do not fit
    """
    federation, table = of.federation(), of.table
    study = of.study(federation, table)
    liars = of.deviating(federation, number, what="liars", least=1, most=len(federation.contributors))
    honest = None
    for lie in (None, *lies):
        with timed() as seconds:
            summing = LyingSum(liars, lie)
            history = of.run(study, federation, summing, finish=table.finish)
            honest = honest or history
            line = line_of(
                LyingLine,
                of,
                history,
                liars=liars,
                lie=lie,
                clip_norm=study.parameters.clip_norm,
                weight=rounded(summing.mean_weight, _DIGITS),
                moved=rounded(length_of(history.final_model - honest.final_model), _DIGITS),
                path=rounded(length_of(honest.final_model - first_model(study)), _DIGITS),
                log_loss=rounded(history.rounds[-1].test_loss, _DIGITS),
                honest_log_loss=rounded(honest.rounds[-1].test_loss, _DIGITS),
                seconds=seconds(),
            )
        yield line
