"""Studies in which processes are killed at named points and started again, and what must hold after any of that.

Sites learn without torch; their updates lie on the fixed-point grid, so that rounding draws nothing and the model after
n released rounds is the same bits whatever the study is called and however often a process died on the way.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from client_agent.learning.study_file import FinishTable
from client_agent.site.events import RoundEnd, RoundRecord
from client_agent.site.sum_memory import RememberedRow
from harness.engine.parties import OPERATOR_NAMES, Parties
from harness.federation.learners import EROSION, light_learner, light_sites, light_study
from harness.federation.processes import FederationSpec
from protocol.messages.control import Announcement, Purpose, Receipt, RoundState, RuleName, RuleSpec, Signed, Study
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from tests.integration.agents import final_model, finished, rounds_of, wait_for
from tests.kit.processes import Federation
from tests.ports import free_ports

REQUESTER = "requester"
SITES = (REQUESTER, "c1", "c2", "c3")
A, B = OPERATOR_NAMES[Side.A], OPERATOR_NAMES[Side.B]
ROUNDS = 2
SQLITE, POSTGRESQL = "sqlite", "postgresql"
_OVER_WITHIN_S = 90.0


@dataclass(frozen=True)
class Kill:
    """One party and the failpoint at which it dies; ``turn`` counts from the start of the process."""

    party: str
    point: str
    turn: int = 1

    @property
    def armed(self) -> str:
        return f"{self.point}:{self.turn}"


class End(StrEnum):
    """The end of the round in which a process died."""

    REPLAYED = "replayed"
    BURNT = "burnt"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Case:
    """A party's death: where, in which mode of study and with which storage, and how the round may end."""

    kills: tuple[Kill, ...]
    ends: frozenset[End] = frozenset({End.REPLAYED})
    large: bool = False
    mode: str = "plain"
    storage: str = SQLITE

    @property
    def name(self) -> str:
        parts = [f"{kill.party}-{kill.point}-{kill.turn}" for kill in self.kills]
        return "-then-".join([*parts, *(["large"] if self.large else [])])

    @property
    def study(self) -> str:
        """Its study's name."""
        mode = "" if self.mode == "plain" else f"{self.mode}-"
        return f"{mode}{self.name}".replace("_", "-").lower()[:60].rstrip("-")


@dataclass(frozen=True)
class Outcome:
    """The remains of a study: its rounds as the requester saw them, every site's final model."""

    records: tuple[RoundRecord, ...]
    models: tuple[bytes, ...]


def crash_federation(
    folder: Path,
    limits: dict[str, Any] | None = None,
    policy: SitePolicy | None = None,
    ports: tuple[int, int] | None = None,
) -> Federation:
    """Two servers and four sites with a seed; any of them can be armed."""
    spec = FederationSpec("crashes", REQUESTER, light_sites(SITES, policy), seed=5, ports=ports or free_ports())
    return Federation(folder, spec, light_learner, limits)


def light_study_of(federation: Federation, name: str, *, large: bool = False) -> Study:
    """Two rounds: of 12 parameters with distances, or of many (several chunks a share) without."""
    if large:
        return light_study(federation.parties, name, RuleSpec(name=RuleName.FEDAVG), rounds=ROUNDS, dimension=100_000)
    return light_study(federation.parties, name, EROSION, rounds=ROUNDS)


def run_killing(
    federation: Federation, study: Study, kills: Sequence[Kill] = (), finish: FinishTable | None = None
) -> Outcome:
    """Run the study; a party dies at each of its points in turn and is started again, armed with the next."""
    waiting = {name: [k.armed for k in kills if k.party == name] for name in {k.party for k in kills}}
    for name, points in waiting.items():
        federation.kill(name)
        federation.start_party(name, points[0])
    federation.hand_in(study, finish)
    over, deadline = finished(federation, study.name, *SITES), time.monotonic() + _OVER_WITHIN_S
    while any(waiting.values()) or not over():
        for name, points in waiting.items():
            if points and federation.exit_code(name) is not None:
                assert federation.exit_code(name) == -signal.SIGKILL, federation.running[name].tail()
                points.pop(0)
                federation.start_party(name, points[0] if points else None)
        alive = {name: code for name in federation.running if (code := federation.exit_code(name)) is not None}
        assert not {n: c for n, c in alive.items() if not waiting.get(n)}, federation.tails()
        assert time.monotonic() < deadline, (
            f"not over; never reached {waiting}\n{federation.tails()}\n{federation.site_tails()}"
        )
        time.sleep(0.03)
    return outcome_of(federation, study)


def died(federation: Federation, name: str, within_s: float = 90.0) -> None:
    """Wait until its failpoint has killed a party."""
    wait_for(f"{name} dies", lambda: federation.exit_code(name) is not None, within_s, federation.tails)
    assert federation.exit_code(name) == -signal.SIGKILL, federation.running[name].tail()


def recorded(federation: Federation, study: Study, rounds: int) -> None:
    """Wait until the requester has so many rounds."""
    wait_for(
        f"round {rounds} of {study.name}",
        lambda: len(rounds_of(federation, REQUESTER, study.name)) >= rounds,
        tails=lambda: federation.tails() + federation.site_tails(),
    )


def over(federation: Federation, study: Study, within_s: float = 120.0) -> Outcome:
    """Wait until the study is over at every site, and audit what is left."""
    wait_for("the end", finished(federation, study.name, *SITES), within_s, federation.site_tails)
    audit(federation, study)
    return outcome_of(federation, study)


def outcome_of(federation: Federation, study: Study) -> Outcome:
    models = tuple(final_model(federation, site, study.name) for site in SITES)
    return Outcome(rounds_of(federation, REQUESTER, study.name), models)


def ended(outcome: Outcome) -> End:
    """The one round that was not released at its first attempt, if there is one."""
    odd = [record for record in outcome.records if record.state is not RoundEnd.RELEASED or record.attempt > 1]
    if not odd:
        return End.REPLAYED
    (record,) = odd
    return End.SKIPPED if record.state is RoundEnd.SKIPPED else End.BURNT


class Undisturbed:
    """Studies without a crash, to compare with: each runs when a case first asks for it."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self._runs: dict[bool, Outcome] = {}
        self._ran: set[str] = set()

    def run(self, large: bool) -> Outcome:
        if large not in self._runs:
            self._runs[large] = outcome = run_killing(
                self.federation, light_study_of(self.federation, _name(large), large=large)
            )
            assert [(r.state, r.attempt) for r in outcome.records] == [(RoundEnd.RELEASED, 1)] * ROUNDS
            assert len(set(outcome.models)) == 1
            handed_out = {tuple(w.numerator for w in record.weights) for record in outcome.records}
            assert large or len(handed_out) == ROUNDS, "a round's weights must depend on the distances before"
        return self._runs[large]

    def once(self, name: str, make: Callable[[str], Study], finish: FinishTable) -> str:
        """The name of a study with a local finish."""
        if name not in self._ran:
            run_killing(self.federation, make(name), finish=finish)
            self._ran.add(name)
        return name

    def model_after(self, rounds: int, large: bool) -> bytes:
        """A skipped round leaves the model as it was."""
        self.run(large)
        return self.federation.journal(SITES[1], _name(large)).load_model(rounds).tobytes()

    def model_of(self, make: Callable[[Parties], Study]) -> bytes:
        """The final model of another study."""
        (model,) = set(run_killing(self.federation, make(self.federation.parties)).models)
        return model


def _name(large: bool) -> str:
    return "undisturbed-large" if large else "undisturbed"


# --- what must hold after any crash -----------------------------------------------------------------------------------


def audit(federation: Federation, study: Study) -> None:
    """The stores' and journals' own records: nothing acknowledged is lost, nothing is used or measured twice."""
    uses = {side: _correlation_uses(federation, side) for side in Side}
    shared = uses[Side.A].keys() & uses[Side.B].keys()
    assert all(uses[Side.A][key] == uses[Side.B][key] for key in shared), "one correlation served two sketches"
    digest = study.digest()
    for side in Side:
        of_study = [target for target in uses[side].values() if target[0] == digest]
        assert len(of_study) == len(set(of_study)), "a sketch took two correlations"
    measured = _measured(federation, digest)
    assert len({number for number, _ in measured}) == len(measured), f"a contribution was measured twice: {measured}"
    released = f"select round, attempt from rounds where study = ? and state = '{RoundState.RELEASED.value}'"
    sums = _attempts(federation, digest, released)
    assert len({number for number, _ in sums}) == len(sums), f"a contribution was released twice: {sums}"
    assert sums <= measured
    _require_receipts(federation, study)
    _require_remembered(federation, study)


def _correlation_uses(federation: Federation, side: Side) -> dict[tuple[object, ...], tuple[object, ...]]:
    with closing(federation.database(side)) as database:
        rows = database.execute('select session, batch, "index", study, round, attempt, site from correlations')
        uses = [(row[:3], row[3:]) for row in rows]
    assert len(dict(uses)) == len(uses), "a correlation is in the store twice"
    return dict(uses)


def _measured(federation: Federation, digest: str) -> set[tuple[int, int]]:
    """Attempts with an opening, now or before: side B stores its own with the correlations that it used; they stay."""
    openings = "select round, attempt from answers where study = ? and kind = 'opening'"
    used = "select distinct round, attempt from correlations where study = ?"
    return _attempts(federation, digest, openings) | _attempts(federation, digest, used, (Side.B,))


def _attempts(
    federation: Federation, digest: str, query: str, sides: Iterable[Side] = tuple(Side)
) -> set[tuple[int, int]]:
    """The attempts that either server has."""
    found: set[tuple[int, int]] = set()
    for side in sides:
        with closing(federation.database(side)) as database:
            found |= {(number, attempt) for number, attempt in database.execute(query, (digest,))}
    return found


def _require_remembered(federation: Federation, study: Study) -> None:
    """Every sum of updates that a server has a share for is in that site's memory of sums, and none is there twice."""
    updates = _rounds_of_updates(federation, study.digest())
    for site in SITES:
        sums = federation.journal(site, study.name).folder.parents[1] / "sums"
        rows = [RememberedRow.model_validate_json(path.read_text()) for path in sums.glob("*/[0-9]*.json")]
        known = [entry.row.round for entry in rows if entry.row.study_digest == study.digest()]
        assert len(known) == len(set(known)), f"{site} remembers a round twice: {known}"
        held = f"select round, attempt from contributions where study = ? and site = '{site}'"
        assert {number for number, _ in _attempts(federation, study.digest(), held)} & updates <= set(known)
    assert updates


def _rounds_of_updates(federation: Federation, digest: str) -> set[int]:
    """Class counts and rankings sum no updates, and stay out of that memory."""
    found: set[int] = set()
    for side in Side:
        with closing(federation.database(side)) as database:
            for number, body in database.execute("select round, announcement from rounds where study = ?", (digest,)):
                announcement = Signed[Announcement].model_validate_json(body).message
                found |= {number} if announcement.purpose is Purpose.UPDATE else set()
    return found


def _require_receipts(federation: Federation, study: Study) -> None:
    """Every receipt that a site holds is a row at the server that signed it, for the same bytes."""
    checked = 0
    for site in SITES:
        folder = federation.journal(site, study.name).folder
        for path in folder.glob("rounds/*/attempt-*/receipt-*.json"):
            receipt = Signed[Receipt].model_validate_json(path.read_text()).message
            with closing(federation.database(receipt.side)) as database:
                row = database.execute(
                    "select body_digest, receipt from contributions where study = ? and round = ? and attempt = ? "
                    "and site = ?",
                    (study.digest(), receipt.round, receipt.attempt, site),
                ).fetchone()
            assert row is not None, f"{path}: acknowledged, and not in the store"
            assert row[0] == receipt.body_digest
            assert json.loads(row[1])["message"]["body_digest"] == receipt.body_digest
            checked += 1
    assert checked >= 2 * len(SITES)
