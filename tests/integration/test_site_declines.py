"""A round in which a site declines: it does so before it trains, and the others go on.

Which lists and announcements it declines is tried by the attacks ``lists-...``; here is one of each kind of reason, the
site's own broken update, and an impossible sum. The site is the real agent's code, talking HTTPS to the running pair;
the other sites and the requester are scripted. A site that declines tells the requester alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from client_agent.contributor.decisions import Decision
from client_agent.site.context import lost_rounds
from client_agent.site.events import RoundEnd
from client_agent.site.letters import WeightMail
from harness.attack import forgeries as malicious
from harness.attack.scripted_requester import ScriptedRequester
from harness.attack.scripted_rounds import (
    EARLY,
    GRID,
    LAST,
    OTHER,
    REQUESTER,
    SITES,
    SMALL,
    STRANGER,
    VICTIM,
    OpenRound,
    Pair,
    database,
)
from protocol.errors import Clause, ErrorCode
from protocol.messages import paths
from protocol.messages.control import (
    Announcement,
    ContributedRound,
    Decline,
    LayerShape,
    ListedWeight,
    ModelSpec,
    RuleName,
    RuleSpec,
    Signed,
    WeightList,
    sign,
)
from protocol.messages.letter import open_letter, seal_letter
from protocol.parameters import Needs
from protocol.policy.memory import SiteMemory
from protocol.policy.site_policy import SitePolicy
from protocol.rounds.agreement import model_digest
from protocol.rounds.evidence import PastRelease
from protocol.sharing import Side
from tests.integration.real_site import MODEL, SITE_KEY, RealSite
from tests.kit.present import present
from tests.kit.processes import Federation
from tests.kit.servers_in_memory import servers_in_memory

LAYERS = (LayerShape(name="hidden", shape=(SMALL - 2,)), LayerShape(name="head.bias", shape=(2,)))
CONTRIBUTORS = SITES[1:]
CLOSES_IN_S = 12.0
"""Long enough for a row's announcement, list and shares on a busy machine; all rows wait at the same time."""
WITHOUT_VICTIM = tuple(site for site in SITES if site != VICTIM)


def weight_list(study_digest: str, numerators: tuple[int, ...] = (4, 4, 4, 4)) -> WeightList:
    weights = tuple(ListedWeight(site=s, numerator=n) for s, n in zip(CONTRIBUTORS, numerators, strict=True))
    return WeightList(study_digest=study_digest, round=1, grid=GRID, weights=weights, salt="cd" * 32)


def same(listed: WeightList) -> WeightList:
    return listed


@dataclass(frozen=True)
class SiteRow:
    """One hostile list or announcement: ``change`` is announced, ``mailed`` is what the site gets instead of it."""

    name: str
    code: str
    says: str
    change: Callable[[WeightList], WeightList] = same
    mailed: Callable[[WeightList], WeightList] = same
    announced: dict[str, object] = field(default_factory=dict)
    memory: SiteMemory = field(default_factory=SiteMemory)
    policy: SitePolicy = field(default_factory=SitePolicy)


OTHER_SALT = "ee" * 32
ROWS = (
    SiteRow(
        "a list that does not match its digest",
        ErrorCode.ANNOUNCEMENT_MISMATCH,
        "not the announced one",
        mailed=lambda w: w.model_copy(update={"salt": OTHER_SALT}),
    ),
    SiteRow(
        "a weight that rises",
        ErrorCode.POLICY_REFUSAL,
        "never_rises",
        memory=SiteMemory(last_listed=(ListedWeight(site=OTHER, numerator=3),)),
    ),
    SiteRow(
        "another model's digest", ErrorCode.MODEL_DIVERGED, "not the requester's", announced={"model_digest": "00" * 32}
    ),
)


@dataclass
class Case:
    """One row's study, round and decision."""

    row: SiteRow
    opened: OpenRound
    site: RealSite
    decision: Decision


def told_of(sites: ScriptedRequester, row: SiteRow, listed: WeightList) -> Announcement:
    """The requester's announcement of the row's list, with the row's lies."""
    digest = model_digest(SITE_KEY, sites.study.digest(), 1, MODEL.tobytes())
    honest: dict[str, object] = {"model_digest": digest, "weight_list_digest": listed.digest(), "opens": Needs.NOTHING}
    lies = dict(row.announced)
    told = sites.announcement(1, listed=CONTRIBUTORS, closes_in_s=CLOSES_IN_S)
    return told.model_copy(update={"model_version": 0} | honest | lies)


def open_case(pair: Pair, row: SiteRow, folder: Path, update: np.ndarray | None = None) -> Case:
    """A study of its own: announced, the list mailed, the site asked, everybody else's shares sent."""
    model = ModelSpec(kind="plugin", layers=LAYERS)
    sites = pair.new_study(SMALL, model=model)
    listed = row.change(weight_list(sites.study.digest()))
    told = told_of(sites, row, listed)
    opened = OpenRound(sites, told, {site: np.full(SMALL, i + 1, dtype=np.uint64) for i, site in enumerate(SITES)})
    sites.announce(told)
    mail_list(opened, row.mailed(listed))
    site = RealSite(opened, folder, row.policy, row.memory, update)
    return Case(row, opened, site, site.decide())


def mail_list(opened: OpenRound, listed: WeightList) -> None:
    digest, party = opened.sites.study.digest(), opened.federation.roster.party(VICTIM)
    assert party is not None
    sealed = seal_letter(WeightMail(weight_list=listed), "weights", digest, REQUESTER, party, 1)
    path = opened.path(paths.MAIL, topic="weights-1", recipient=VICTIM)
    opened.sites.me.ok(Side.A, "PUT", path, sealed)


def letter_to_the_requester(opened: OpenRound) -> Decline:
    """The site's signed reason, as the requester reads it."""
    path = opened.path(paths.MAIL, topic="decline-1", recipient=REQUESTER) + f"?sender={VICTIM}"
    sealed = opened.sites.me.ok(Side.A, "GET", path)
    key = opened.federation.keys(REQUESTER).sealing
    letter = open_letter(sealed, Signed[Decline], "decline", opened.sites.study.digest(), VICTIM, REQUESTER, 1, key)
    assert letter.signature_of(VICTIM) is not None
    return letter.message


def shares_held(federation: Federation, study_digest: str) -> set[str]:
    held = set()
    for side in Side:
        connection = database(federation, side)
        held |= {row[0] for row in connection.execute("select site from contributions where study = ?", [study_digest])}
        connection.close()
    return held


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with servers_in_memory(tmp_path_factory.mktemp("requester"), [*SITES, STRANGER]) as federation:
        made = Pair(federation)
        yield made
        made.close()


@pytest.fixture(scope="module")
def cases(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Case]]:
    """Every row's round is opened at once, so that their deadlines pass together."""
    made: dict[str, Case] = {}
    with ExitStack() as sites:
        for row in ROWS:
            made[row.name] = case = open_case(pair, row, tmp_path_factory.mktemp("site"))
            sites.callback(case.site.close)
            for site in WITHOUT_VICTIM:
                case.opened.contribute(site)
        yield made


@pytest.mark.parametrize("name", [row.name for row in ROWS], ids=[row.name.replace(" ", "-") for row in ROWS])
def test_declined_before_training(cases: dict[str, Case], pair: Pair, name: str) -> None:
    case = cases[name]
    row, opened = case.row, case.opened
    assert (case.decision.accepted, case.decision.code) == (False, row.code)
    assert row.says in case.decision.reason
    letter = letter_to_the_requester(opened)
    assert (letter.code, letter.site) == (row.code, VICTIM)
    assert row.says in letter.reason
    assert not case.site.trained
    assert case.site.agent.state.memory == row.memory
    assert VICTIM not in shares_held(pair.federation, opened.sites.study.digest())
    opened.sent.add(VICTIM)
    opened.lock()
    opened.measure()
    opened.release()
    opened.require_sum(WITHOUT_VICTIM)
    assert opened.agreed == WITHOUT_VICTIM


def test_a_measured_round_without_need_is_not_even_announced(pair: Pair) -> None:
    """A rule without distances: the servers refuse, before any site has to."""
    sites = pair.new_study(SMALL, rule=RuleSpec(name=RuleName.FEDAVG))
    opened = pair.round(opens=Needs.DISTANCES)
    signed = sign(opened.announcement, REQUESTER, sites.me.keys.signing)
    refused = sites.me.send(Side.A, "POST", opened.path(paths.ANNOUNCEMENT), signed.canonical())
    assert (refused.status_code, refused.json()["code"]) == (400, ErrorCode.MALFORMED_MESSAGE)
    assert sites.view(Side.A).current is None
    pair.round(opens=Needs.NOTHING).finish()


SOUND = SiteRow("sound", "", "")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_stop_at_the_site_that_names_the_layer(pair: Pair, tmp_path: Path, value: float) -> None:
    update = np.full(SMALL, 0.01, dtype=np.float32)
    update[-1] = value
    case = open_case(pair, SOUND, tmp_path, update)
    declined = case.decision
    assert (declined.accepted, declined.code) == (False, ErrorCode.UNUSABLE_UPDATE)
    assert "layer 'head.bias': 1 of 2 values are NaN or infinite" in letter_to_the_requester(case.opened).reason
    assert VICTIM not in shares_held(pair.federation, case.opened.sites.study.digest())
    assert list(case.site.agent.journal.folder.rglob("*.sealed")) == [
        case.site.agent.journal.round_folder(1) / "decline.sealed"
    ]
    case.opened.sent.add(VICTIM)
    case.opened.finish()
    assert case.opened.agreed == WITHOUT_VICTIM
    case.site.close()


def test_an_agent_that_lost_its_memory_contributes_nothing(pair: Pair, cases: dict[str, Case], tmp_path: Path) -> None:
    """Its key was in sums of other studies at these servers, which an empty state folder knows nothing of."""
    earlier = pair.round(opens=Needs.NOTHING)
    earlier.finish()
    sites = pair.new_study(SMALL, model=ModelSpec(kind="plugin", layers=LAYERS))
    listed = weight_list(sites.study.digest())
    told = told_of(sites, SOUND, listed)
    opened = OpenRound(sites, told, {site: np.full(SMALL, i + 1, dtype=np.uint64) for i, site in enumerate(SITES)})
    sites.announce(told)
    mail_list(opened, listed)
    site = RealSite(opened, tmp_path, SOUND.policy, SOUND.memory, reconciled=False)
    decision = site.decide()
    assert (decision.accepted, decision.clause) == (False, Clause.MEMORY_UNRECONCILED)
    assert f"{earlier.sites.study.name} round {earlier.number}" in decision.reason
    assert not site.trained
    known = [(one.study_digest, one.round) for one in lost_rounds_of(site)]
    assert (earlier.sites.study.digest(), earlier.number) in known
    site.agent.context.sums.forget(known)
    assert lost_rounds_of(site) == ()
    site.close()


def lost_rounds_of(site: RealSite) -> tuple[ContributedRound, ...]:
    context = site.agent.context
    return lost_rounds(context.sums, context.clients, context.roster, context.site)


def test_an_announcement_that_differs_between_the_servers_is_declined(pair: Pair, tmp_path: Path) -> None:
    sites = pair.new_study(SMALL, model=ModelSpec(kind="plugin", layers=LAYERS))
    listed = weight_list(sites.study.digest())
    at_a, at_b = malicious.equivocating_announcement(told_of(sites, SOUND, listed))
    opened = OpenRound(sites, at_a, {site: np.zeros(SMALL, dtype=np.uint64) for site in SITES})
    sites.announce(at_a, [Side.A])
    sites.announce(at_b, [Side.B])
    mail_list(opened, listed)
    site = RealSite(opened, tmp_path, SOUND.policy, SOUND.memory)
    decision = site.decide()
    assert (decision.accepted, decision.code) == (False, ErrorCode.ANNOUNCEMENT_MISMATCH)
    assert "different announcements" in letter_to_the_requester(opened).reason
    assert not site.trained
    site.close()


def test_a_sum_beyond_its_bound_is_discarded_and_the_model_stays(pair: Pair, tmp_path: Path) -> None:
    """Three sites collude just below what the range check lets pass, and the requester releases them all the same."""
    model = ModelSpec(kind="plugin", layers=LAYERS)
    sites = pair.new_study(SMALL, model=model)
    listed = weight_list(sites.study.digest(), (1, 1, 1, 1))
    told = told_of(sites, SOUND, listed).model_copy(update={"opens": Needs.DISTANCES})
    hostile = np.zeros(sites.study.parameters.dimension, dtype=np.uint64)
    hostile[0] = np.uint64(
        2 ** (sites.study.parameters.range_bits - 1) - 1
    )  # just inside what every projection lets pass
    small = np.ones(SMALL, dtype=np.uint64)
    opened = OpenRound(sites, told, {site: hostile if site in (EARLY, OTHER, LAST) else small for site in SITES})
    sites.announce(told)
    mail_list(opened, listed)
    site = RealSite(opened, tmp_path, SOUND.policy, SOUND.memory, np.full(SMALL, 0.01, dtype=np.float32))
    decision = site.decide()
    for name in SITES:
        opened.contribute(name)
    opened.lock()
    opened.measure()
    assert all(opened.in_range().values())
    opened.release()
    a, _ = site.views()
    past = PastRelease(
        announcement=told, weight_list=listed, agreed_set=present(a.agreed_set), release_set=present(a.release_set)
    )
    assert decision.accepted
    assert site.agent.take_release(past) is RoundEnd.DISCARDED
    assert site.agent.state.model_version == 0
    np.testing.assert_array_equal(site.agent.require_model(), MODEL)
    np.testing.assert_array_equal(site.agent.journal.load_model(0), MODEL)
    assert any("the model stays as it was" in event.text for event in site.events)
    site.close()
    pair.round(opens=Needs.NOTHING).finish()
