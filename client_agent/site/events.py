"""An agent's records: one per round for metrics.jsonl, live events for whoever watches, and rewards.

A reward is the rounds that a site took part in and the sum of its weights, from this site's own records. Where every
site weighs itself, a site knows its own weight alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel

from client_agent.learning.scores import Score
from host.files import append_durably
from host.frozen import Frozen
from protocol.messages.control import ListedWeight, Purpose
from protocol.rules.interface import Measured
from protocol.text import printable, printable_lines

METRICS: Final = "metrics.jsonl"
"""The file of round records in a study's journal."""
Shown = Annotated[str, AfterValidator(printable)]
ShownLines = Annotated[str, AfterValidator(printable_lines)]
"""Texts that may hold another party's words, as they can be shown."""


class RoundEnd(StrEnum):
    """The end of a round at this site."""

    RELEASED = "released"
    RANKED = "ranked"
    CLOSED = "closed"
    SKIPPED = "skipped"
    DISCARDED = "discarded"
    DECLINED = "declined"
    ALONE = "alone"
    FINISHED = "finished"


class SiteValue(Frozen):
    """A number about one site."""

    site: str
    value: float


def site_values(numbers: Iterable[tuple[str, float]]) -> tuple[SiteValue, ...]:
    return tuple(SiteValue(site=site, value=value) for site, value in numbers)


class Phase(Frozen):
    """Seconds spent in one phase of a round."""

    name: str
    seconds: float


class SitePair(Frozen):
    """A number about two sites."""

    first: str
    second: str
    value: float


class Absent(StrEnum):
    """Why a site is not in what a round came to."""

    NOT_READY = "not_ready"
    NOT_LISTED = "not_listed"
    DECLINED = "declined"
    GIVEN_UP = "given_up"
    NO_CONTRIBUTION = "no_contribution"
    FAILED_CHECK = "failed_check"


class Absence(Frozen):
    """A site that is not in a round; ``text`` is what it said of it, where it said something."""

    site: str
    why: Absent
    text: Shown = ""

    @property
    def said(self) -> str:
        return f"{self.site} ({self.why.value.replace('_', ' ')}{': ' if self.text else ''}{self.text})"

    @property
    def said_again(self) -> str:
        """Text for people who have read it once already."""
        return f"{self.site} ({self.why.value.replace('_', ' ')}, as before)"


class RoundValues(Frozen):
    """The values that an agent and a simulation record alike of a round: who was left out, and the requester's numbers
    on sites.

    ``failed_check`` were left out of the sum by a check, ``declined`` by their own policy. ``alphas`` are the weights
    after the round in full precision; the others are what was opened, empty where the rule does not have it opened.
    """

    failed_check: tuple[str, ...] = ()
    declined: tuple[str, ...] = ()
    alphas: tuple[SiteValue, ...] = ()
    distances: tuple[SiteValue, ...] = ()
    norms: tuple[SiteValue, ...] = ()
    inner_products: tuple[SiteValue, ...] = ()
    pairs: tuple[SitePair, ...] = ()

    def shared(self) -> dict[str, Any]:
        """These fields alone, for a record of the other kind."""
        return {name: getattr(self, name) for name in RoundValues.model_fields}


def opened_values(measured: Measured) -> dict[str, Any]:
    """Those fields of a record that say what the requester opened."""
    return {
        "distances": site_values(measured.distances),
        "norms": site_values(measured.norms),
        "inner_products": site_values(measured.inner_products),
        "pairs": tuple(SitePair(first=p.first, second=p.second, value=p.distance) for p in measured.pairs),
    }


class _RoundAtSite(BaseModel):
    """The first fields of a line of metrics.jsonl: base classes further to the right give the fields before."""

    time_s: float
    study: str
    site: str
    round: int
    state: RoundEnd
    purpose: Purpose = Purpose.UPDATE
    attempt: int = 1
    reason: Shown = ""
    model_version: int
    weights: tuple[ListedWeight, ...] = ()
    grid: int = 1
    requester_numerator: int | None = None
    own_weight: float | None = None
    isolation: float | None = None
    took_part: tuple[str, ...] = ()


class RoundRecord(RoundValues, _RoundAtSite):
    """One round as this site saw it; alphas and what was opened about sites are the requester's alone.

    ``weights`` is the list that was handed out, over ``grid``, ``requester_numerator`` the requester's own weight on
    it, None for the grid; ``own_weight`` what this site gave itself under a rule that has every site weigh itself.
    ``isolation`` is the least relative error with which one who knows all sums and
    weights has anybody's update, this round's sum included, as far as this site can tell from its own
    (docs/protocol.md 13). Bytes are socket bytes since the record before, of all studies. ``test_scores`` are the
    metrics of the study's task on this site's test part, of which accuracy stands by itself too. ``pull`` is that of a
    local finish, None where it kept the shared model. ``absences`` names every contributor of the roster that is not
    in the round, at the requester alone.
    """

    requester_norm: float | None = None
    clipped: bool | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    phases: tuple[Phase, ...] = ()
    seconds: float = 0.0
    test_accuracy: float | None = None
    test_scores: tuple[Score, ...] = ()
    pull: float | None = None
    absences: tuple[Absence, ...] = ()

    def reason_after(self, before: RoundRecord | None) -> str:
        """The reason, in two words where it is that of the round ``before``."""
        return "as before" if self.reason and before is not None and before.reason == self.reason else self.reason

    def missing_after(self, before: RoundRecord | None) -> str:
        """Name who is not in the round and why, without what the round ``before`` says of them too."""
        known = () if before is None else before.absences
        return ", ".join(one.said_again if one.text and one in known else one.said for one in self.absences)


def after_each(records: Sequence[RoundRecord]) -> Iterator[tuple[RoundRecord | None, RoundRecord]]:
    """Every record behind the one before it."""
    return zip((None, *records), records, strict=False)


class EventKind(StrEnum):
    CONNECTED = "connected"
    STUDY = "study"
    PHASE = "phase"
    ROUND = "round"
    DECLINED = "declined"
    PROBLEM = "problem"
    FINISHED = "finished"


class AgentEvent(Frozen):
    """Something a person may want to see now; ``record`` is set for ROUND."""

    kind: EventKind
    site: str
    study: str
    round: int | None = None
    text: ShownLines = ""
    record: RoundRecord | None = None


EventSink = Callable[[AgentEvent], None]


def append_record(path: Path, record: RoundRecord) -> None:
    """Add a line to a study's metrics.jsonl. Raises: StorageFull; then no part of the line is left there"""
    append_durably(path, record.model_dump_json().encode() + b"\n")


def read_metrics(path: Path) -> tuple[RoundRecord, ...]:
    """All complete records of a metrics file."""
    return tuple(RoundRecord.model_validate_json(line) for line in _whole_lines(path))


def last_metrics(path: Path) -> RoundRecord | None:
    """The last complete record of a metrics file; None before the first one. No other one is parsed."""
    lines = _whole_lines(path)
    return RoundRecord.model_validate_json(lines[-1]) if lines else None


def _whole_lines(path: Path) -> list[bytes]:
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []  # behind the last end nothing is complete
    return [line for line in lines if line.endswith(b"}")]


_SHARED: Final = frozenset({RoundEnd.RELEASED, RoundEnd.DISCARDED})


class Reward(Frozen):
    """One site's part in a study; ``weights`` is None where only the site itself knows them."""

    site: str
    rounds: int
    weights: float | None


def rewards_in(sums: Sequence[Mapping[str, float | None]]) -> tuple[Reward, ...]:
    """Every site's part in released sums, each given as the weight of every site in it, None where it is unknown."""
    names = dict.fromkeys(name for weights in sums for name in weights)
    return tuple(_reward(name, [weights[name] for weights in sums if name in weights]) for name in names)


def rewards_of(records: Sequence[RoundRecord], own: str, requester: str) -> tuple[Reward, ...]:
    """The sites that took part in a released sum of updates, the requester first, then in the order of the lists.

    A round that is recorded twice, by a crash in between, counts once. The requester's weight is 1 unless the list
    says another.
    """
    rounds = {one.round: one for one in records if one.state in _SHARED and one.purpose.plan.steps_model}
    return rewards_in(
        [{name: _weight(name, record, own, requester) for name in record.took_part} for record in rounds.values()]
    )


def _reward(site: str, weights: Sequence[float | None]) -> Reward:
    known = [weight for weight in weights if weight is not None]
    return Reward(site=site, rounds=len(weights), weights=sum(known) if len(known) == len(weights) else None)


def _weight(name: str, record: RoundRecord, own: str, requester: str) -> float | None:
    if record.own_weight is not None:
        return record.own_weight if name == own else None
    if name == requester:
        return 1.0 if record.requester_numerator is None else record.requester_numerator / record.grid
    return next((w.numerator / record.grid for w in record.weights if w.site == name), None)
