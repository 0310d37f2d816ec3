"""Lengths show no secret: of letters, of everything a server stores, of every request's body.

Server A read weights off letters (a list of five sites was 1,570 bytes with weights of 32 and 1,565 with 9), digits of
class totals, and which reason a site declined for. Here real agents run the same study twice at the same two servers;
the runs differ only in data, in what follows from them, and in why a site declines.

The attacks are ``server-a-measures-...`` and ``servers-classify-all-they-store``; here is every kind of length.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.net.ledger import read_ledger
from client_agent.site.events import EventKind
from client_agent.site.letters import CountedClasses, StudyRefusal, WeightMail
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import Odd, light_learner, with_odd
from protocol.errors import Clause, ErrorCode, UnusableUpdate
from protocol.messages.control import Decline, Message, RuleName, RuleSpec, sign
from protocol.messages.letter import seal_letter, told
from protocol.policy.site_policy import SitePolicy
from protocol.rounds.evidence import PastRelease
from protocol.sharing import Side
from tests.integration.agents import REQUESTER, finished, rounds_of, spec, study_for
from tests.kit.present import present
from tests.unit.client_agent.announced_rounds import weights
from tests.unit.client_agent.federation import DIGEST as ANY_DIGEST
from tests.unit.client_agent.federation import REQUESTER as R0
from tests.unit.client_agent.federation import ROSTER, keys, release

# --- letters ----------------------------------------------------------------------------------------------------------


def sealed(message: Message, kind: str, sender: str = R0, recipient: str = "c1") -> bytes:
    to = present(ROSTER.party(recipient))
    return seal_letter(message, kind, ANY_DIGEST, sender, to, 1)


def past(numerators: tuple[int, ...]) -> PastRelease:
    made = release(1)
    return made.model_copy(update={"weight_list": weights(numerators)})


@pytest.mark.parametrize("numerators", [(9, 9, 9), (5, 32, 9), (0, 0, 1), (32, 31, 10**6)])
def test_weights_do_not_show(numerators: tuple[int, ...]) -> None:
    """This round's and those of the release that is enclosed."""
    all_ones = WeightMail(weight_list=weights((32, 32, 32)), previous=past((32, 32, 32)))
    other = WeightMail(weight_list=weights(numerators), previous=past(numerators))
    assert len(sealed(all_ones, "weights")) == len(sealed(other, "weights"))


@pytest.mark.parametrize("totals", [(0, 0), (9, 10), (123456, 7), (2**62, 1)])
def test_class_totals_do_not_show(totals: tuple[int, ...]) -> None:
    def mail(of: tuple[int, ...]) -> bytes:
        counted = CountedClasses(study_digest=ANY_DIGEST, round=1, totals=of)
        return sealed(WeightMail(weight_list=weights(), counted=sign(counted, R0, keys(R0).signing)), "weights")

    assert len(mail(totals)) == len(mail((50, 50)))


REASONS = [
    (ErrorCode.POLICY_REFUSAL, Clause.LARGEST_SHARE, "largest_share: 0.61 of 0.6"),
    (ErrorCode.UNUSABLE_UPDATE, None, "layer 'weight' holds NaN"),
    (ErrorCode.MODEL_DIVERGED, None, ""),
    (ErrorCode.POLICY_REFUSAL, Clause.MODEL_BEHIND, "ü" * 4000),
]


@pytest.mark.parametrize(("code", "clause", "reason"), REASONS)
def test_why_a_site_declines_or_refuses_does_not_show(code: ErrorCode, clause: Clause | None, reason: str) -> None:
    fields: dict[str, Any] = {"study_digest": ANY_DIGEST, "site": "c1", "reason": told(reason)}
    decline = Decline(round=1, code=code, clause=clause, **fields)
    refusal = StudyRefusal(code=code, clause=clause, **fields)
    for message, kind in ((decline, "decline"), (refusal, "refusal")):
        assert len(sealed(sign(message, "c1", keys("c1").signing), kind, "c1", R0)) == 3184


# --- whole studies ----------------------------------------------------------------------------------------------------

SITES = ("c1", "c2", "c3", "c4")
ANYTHING = SitePolicy(least_isolation=0.0, most_questions=2)
"""Updates of one kind would otherwise end the shared part; which sums open them is not the question here."""
DEADLINE_S = 8.0
"""A round in which a site declines lasts as long: servers do not know that it did."""
EROSION = RuleSpec(name=RuleName.WEIGHT_EROSION, distance_penalty=0.36, size_penalty=0.0)


class One(Odd):
    """All updates alike: weights stay at 32; few examples; a short reason."""

    counts: tuple[int, ...] = (5, 5)
    reason = "x"

    def update(self, model: np.ndarray, round_number: int) -> np.ndarray:
        return np.ones(12, dtype=np.float32)

    def class_counts(self) -> tuple[int, ...]:
        return self.counts

    def sample_count(self) -> int:
        return sum(self.counts)


class Apart(One):
    """Every update another direction and length: weights fall to one digit; many examples; a long reason."""

    counts = (900, 1000)
    reason = "layer 'weight' holds NaN in 7 of 10 coordinates of this site's update; look at its data " * 5
    axis = 1

    def update(self, model: np.ndarray, round_number: int) -> np.ndarray:
        update = np.zeros(12, dtype=np.float32)
        update[0], update[self.axis] = 1.0, 1.0
        return update


class Declining(Odd):
    reason = "x"

    def update(self, model: np.ndarray, round_number: int) -> np.ndarray:
        if round_number == 2:
            raise UnusableUpdate(self.reason)
        return super().update(model, round_number)


def variant(base: type[One], *, declining: bool) -> dict[str, type[Odd]]:
    """The variant that every site computes."""
    made: dict[str, type[Odd]] = {}
    for axis, site in enumerate((REQUESTER, *SITES)):
        learner = type(f"{base.__name__}{axis}", (base,), {"axis": axis})
        made[site] = learner
        if declining and site == SITES[-1]:
            made[site] = type("Declines", (Declining, learner), {"reason": base.reason})
    return made


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InMemoryFederation]:
    folder = tmp_path_factory.mktemp("lengths")
    with InMemoryFederation(spec(dict.fromkeys((REQUESTER, *SITES), ANYTHING)), folder, light_learner) as running:
        yield running


def run_study(
    servers: InMemoryFederation,
    name: str,
    rule: RuleSpec,
    rounds: int,
    odd: Mapping[str, type[Odd]],
    *,
    declining: bool,
) -> dict[str, set[tuple[object, ...]]]:
    """One study from its creation to its end; -> what every site sent."""
    before = {site: len(read_ledger(servers.state(site) / "ledger.jsonl")) for site in (REQUESTER, *SITES)}
    with servers.agents(learner=with_odd(odd)):
        study = study_for(servers, name, EROSION, rounds, DEADLINE_S if declining else 60.0)
        own = int(rule.name.self_weighted)  # one more coordinate for each site's own weight
        sizes = {"dimension": study.parameters.dimension + own, "weight_grid": 2 if own else 32}
        parameters = study.parameters.model_copy(update=sizes)
        servers.hand_in(study.model_copy(update={"rule": rule, "parameters": parameters}))
        servers.until("the study's end", finished(servers, name, REQUESTER, *SITES))
    assert servers.texts(EventKind.PROBLEM, REQUESTER) == []
    return {site: sent(servers, site, start) for site, start in before.items()}


def sent(servers: InMemoryFederation, site: str, start: int) -> set[tuple[object, ...]]:
    """Server, purpose and body of every request; views are asked for as often as time allows."""
    entries = read_ledger(servers.state(site) / "ledger.jsonl")[start:]
    return {
        (entry.server, entry.purpose, entry.body_sent_bytes)
        for entry in entries
        if entry.purpose not in ("view", "handshake", "connection", "list studies")
    }


KEYS = ("round", "attempt", "site", "kind", "sender", "recipient", "topic", "party")
COUNTERS = ("cursor", "id", "absent_in_a_row")


def stored(servers: InMemoryFederation, side: Side, name: str) -> dict[tuple[object, ...], tuple[object, ...]]:
    """Every row about one study, by its place: the length of each column, and of the file that it names."""
    data = data_folder(servers, side)
    found: dict[tuple[object, ...], tuple[object, ...]] = {}
    with closing(sqlite3.connect(data / "server.db")) as database:
        database.row_factory = sqlite3.Row
        (study,) = database.execute("select digest from studies where name = ?", [name]).fetchone()
        tables = [row[0] for row in database.execute("select name from sqlite_master where type = 'table'")]
        for table in tables:
            columns = [row[1] for row in database.execute(f"pragma table_info({table})")]
            owner = "study" if "study" in columns else "digest" if table == "studies" else None
            if owner is None or table == "correlations":
                continue
            for row in database.execute(f'select * from "{table}" where "{owner}" = ?', [study]):
                place = (table, *(row[key] for key in KEYS if key in columns))
                found[place] = tuple(measured(data, key, row[key]) for key in columns if key not in COUNTERS)
    return found


def measured(data: Path, key: str, value: object) -> object:
    """A length; a number is none, and whether a value is there shows.

    Correlations are counted over all studies of two servers, so how far the count has come is taken out.
    """
    if isinstance(value, bytes):
        value = re.sub(rb'"(batch|index)":\d+', b"", value)
    if isinstance(value, str | bytes):
        file = data / "shares" / value if isinstance(value, str) and key.endswith("file") else None
        return key, len(value), file.stat().st_size if file is not None and file.exists() else None
    return key, None if value is None else type(value).__name__


def data_folder(servers: InMemoryFederation, side: Side) -> Path:
    (found,) = servers.folder.glob(f"{servers.parties.roster.message.operator(side).name}/**/server.db")
    return found.parent


def handed_out(servers: InMemoryFederation, name: str) -> Sequence[tuple[int, ...]]:
    return [
        tuple(weight.numerator for weight in record.weights)
        for record in rounds_of(servers, REQUESTER, name)
        if record.weights
    ]


@pytest.mark.parametrize(
    ("label", "rule", "rounds", "declining"),
    [("erode", EROSION, 3, True), ("count", RuleSpec(name=RuleName.WFEDAVG), 1, False)],
    ids=["weights-and-reasons", "class-counts"],
)
def test_nothing_that_a_server_stores_is_longer_for_other_data(
    label: str, rule: RuleSpec, rounds: int, declining: bool, servers: InMemoryFederation
) -> None:
    first, second = f"{label}-1", f"{label}-2"
    asked = [
        run_study(servers, name, rule, rounds, variant(base, declining=declining), declining=declining)
        for name, base in ((first, One), (second, Apart))
    ]
    courses = [
        [(record.state, record.took_part, record.declined) for record in rounds_of(servers, REQUESTER, name)]
        for name in (first, second)
    ]
    assert courses[0] == courses[1], "what the servers may know is the same"
    assert asked[0] == asked[1]
    for side in Side:
        one, other = (stored(servers, side, name) for name in (first, second))
        assert one.keys() == other.keys()
        for place, lengths in one.items():
            assert other[place] == lengths, place
        assert {place[0] for place in one} >= {"studies", "rounds", "mail", "contributions"} - {
            "mail" if side is Side.B else ""
        }
    if declining:
        digits = [sum(len(str(n)) for listed in handed_out(servers, name) for n in listed) for name in (first, second)]
        assert digits[0] > digits[1], "the runs differ in what must stay hidden"
