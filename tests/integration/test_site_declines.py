"""A round in which a site declines: it does so before it trains, and the others go on.

Which lists and announcements it declines is tried by the attacks ``lists-...``; here is one of each kind of reason, the
site's own broken update, and an impossible sum. The site is the real agent's code, talking HTTPS to the running pair;
the other sites and the requester are scripted. A site that declines tells the requester alone.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.contributor.decisions import Decision
from client_agent.site.context import lost_rounds
from client_agent.site.events import RoundEnd
from client_agent.site.letters import WeightMail
from harness.attack.forgeries import equivocating_announcement
from harness.attack.scripted_rounds import (
    EARLY,
    GRID,
    LAST,
    OTHER,
    REQUESTER,
    SITES,
    SMALL,
    VICTIM,
    AttackedPair,
    OpenRound,
    database,
)
from harness.federation.server_apps import ServersInMemory
from protocol.errors import Clause, ErrorCode
from protocol.messages import paths
from protocol.messages.control import (
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

LAYERS = (LayerShape(name="hidden", shape=(SMALL - 2,)), LayerShape(name="head.bias", shape=(2,)))
CONTRIBUTORS = SITES[1:]
CLOSES_IN_S = 12.0
"""Long enough for a row's announcement, list and shares on a busy machine; all rows wait at the same time."""
WITHOUT_VICTIM = tuple(site for site in SITES if site != VICTIM)


@dataclass(frozen=True)
class Lie:
    """A list or an announcement that the requester alters, and the site's answer."""

    code: str
    says: str
    mailed: dict[str, Any] = field(default_factory=dict)
    announced: dict[str, Any] = field(default_factory=dict)
    memory: SiteMemory = field(default_factory=SiteMemory)


HONEST = Lie("", "")
LIES = {
    "a-list-that-does-not-match-its-digest": Lie(
        ErrorCode.ANNOUNCEMENT_MISMATCH, "not the announced one", mailed={"salt": "ee" * 32}
    ),
    "a-weight-that-rises": Lie(
        ErrorCode.POLICY_REFUSAL,
        "never_rises",
        memory=SiteMemory(last_listed=(ListedWeight(site=OTHER, numerator=3),)),
    ),
    "another-models-digest": Lie(
        ErrorCode.MODEL_DIVERGED, "not the requester's", announced={"model_digest": "00" * 32}
    ),
}


def first_round(pair: AttackedPair, numerator: int = 4, **announced: object) -> tuple[OpenRound, WeightList]:
    """The first round of a study of its own, which is not announced yet, and its list."""
    sites = pair.new_study(SMALL, model=ModelSpec(kind="plugin", layers=LAYERS))
    digest = sites.study.digest()
    weights = tuple(ListedWeight(site=site, numerator=numerator) for site in CONTRIBUTORS)
    listed = WeightList(study_digest=digest, round=1, grid=GRID, weights=weights, salt="cd" * 32)
    told: dict[str, object] = {
        "model_version": 0,
        "model_digest": model_digest(SITE_KEY, digest, 1, MODEL.tobytes()),
        "weight_list_digest": listed.digest(),
        "opens": Needs.NOTHING,
        **announced,
    }
    announcement = sites.announcement(1, listed=CONTRIBUTORS, closes_in_s=CLOSES_IN_S).model_copy(update=told)
    return OpenRound(
        sites, announcement, {site: np.full(SMALL, i + 1, dtype=np.uint64) for i, site in enumerate(SITES)}
    ), listed


def asked(
    opened: OpenRound,
    listed: WeightList,
    folder: Path,
    update: np.ndarray | None = None,
    lie: Lie = HONEST,
    *,
    reconciled: bool = True,
) -> tuple[RealSite, Decision]:
    """The real site gets its list, and decides."""
    mail_list(opened, listed.model_copy(update=lie.mailed))
    site = RealSite(opened, folder, SitePolicy(), lie.memory, update, reconciled=reconciled)
    return site, site.decide()


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


def shares_held(federation: ServersInMemory, study_digest: str) -> set[str]:
    held = set()
    for side in Side:
        connection = database(federation, side)
        held |= {row[0] for row in connection.execute("select site from contributions where study = ?", [study_digest])}
        connection.close()
    return held


def test_lies_are_declined_before_training(pair: AttackedPair, tmp_path: Path) -> None:
    """All rounds are opened at once, so that their deadlines pass together."""
    with ExitStack() as sites:
        cases = {}
        for name, lie in LIES.items():
            opened, listed = first_round(pair, **lie.announced)
            opened.sites.announce(opened.announcement)
            (tmp_path / name).mkdir()
            cases[name] = opened, *asked(opened, listed, tmp_path / name, lie=lie)
            sites.callback(cases[name][1].close)
            for other in WITHOUT_VICTIM:
                opened.contribute(other)
        for name, (opened, site, decision) in cases.items():
            lie = LIES[name]
            assert (decision.accepted, decision.code) == (False, lie.code), name
            letter = letter_to_the_requester(opened)
            assert (letter.code, letter.site) == (lie.code, VICTIM)
            assert lie.says in decision.reason
            assert lie.says in letter.reason
            assert not site.trained
            assert site.agent.state.memory == lie.memory
            assert VICTIM not in shares_held(pair.federation, opened.sites.study.digest())
            opened.sent.add(VICTIM)
            opened.finish()
            opened.require_sum(WITHOUT_VICTIM)
            assert opened.agreed == WITHOUT_VICTIM


def test_a_measured_round_without_need_is_not_even_announced(pair: AttackedPair) -> None:
    """A rule without distances: the servers refuse, before any site has to."""
    sites = pair.new_study(SMALL, rule=RuleSpec(name=RuleName.FEDAVG))
    opened = pair.round(opens=Needs.DISTANCES)
    signed = sign(opened.announcement, REQUESTER, sites.me.keys.signing)
    refused = sites.me.send(Side.A, "POST", opened.path(paths.ANNOUNCEMENT), signed.canonical())
    assert (refused.status_code, refused.json()["code"]) == (400, ErrorCode.MALFORMED_MESSAGE)
    assert sites.view(Side.A).current is None
    pair.round(opens=Needs.NOTHING).finish()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_stop_at_the_site_that_names_the_layer(
    pair: AttackedPair, tmp_path: Path, value: float
) -> None:
    update = np.full(SMALL, 0.01, dtype=np.float32)
    update[-1] = value
    opened, listed = first_round(pair)
    opened.sites.announce(opened.announcement)
    site, decision = asked(opened, listed, tmp_path, update)
    with closing(site):
        assert (decision.accepted, decision.code) == (False, ErrorCode.UNUSABLE_UPDATE)
        assert "layer 'head.bias': 1 of 2 values are NaN or infinite" in letter_to_the_requester(opened).reason
        assert VICTIM not in shares_held(pair.federation, opened.sites.study.digest())
        journal = site.agent.journal
        assert list(journal.folder.rglob("*.sealed")) == [journal.round_folder(1) / "decline.sealed"]
        opened.sent.add(VICTIM)
        opened.finish()
        assert opened.agreed == WITHOUT_VICTIM


def test_an_agent_that_lost_its_memory_contributes_nothing(pair: AttackedPair, tmp_path: Path) -> None:
    """Its key was in sums of other studies at these servers, which an empty state folder knows nothing of."""
    earlier = pair.round(opens=Needs.NOTHING)
    earlier.finish()
    opened, listed = first_round(pair)
    opened.sites.announce(opened.announcement)
    site, decision = asked(opened, listed, tmp_path, reconciled=False)
    with closing(site):
        assert (decision.accepted, decision.clause) == (False, Clause.MEMORY_UNRECONCILED)
        assert f"{earlier.sites.study.name} round {earlier.number}" in decision.reason
        assert not site.trained
        known = [(one.study_digest, one.round) for one in lost_rounds_of(site)]
        assert (earlier.sites.study.digest(), earlier.number) in known
        site.agent.context.sums.forget(known)
        assert lost_rounds_of(site) == ()


def lost_rounds_of(site: RealSite) -> tuple[ContributedRound, ...]:
    context = site.agent.context
    return lost_rounds(context.sums, context.clients, context.roster, context.site)


def test_an_announcement_that_differs_between_the_servers_is_declined(pair: AttackedPair, tmp_path: Path) -> None:
    opened, listed = first_round(pair)
    for side, announcement in zip(Side, equivocating_announcement(opened.announcement), strict=True):
        opened.sites.announce(announcement, [side])
    site, decision = asked(opened, listed, tmp_path)
    with closing(site):
        assert (decision.accepted, decision.code) == (False, ErrorCode.ANNOUNCEMENT_MISMATCH)
        assert "different announcements" in letter_to_the_requester(opened).reason
        assert not site.trained


def test_a_sum_beyond_its_bound_is_discarded_and_the_model_stays(pair: AttackedPair, tmp_path: Path) -> None:
    """Three sites collude just below what the range check lets pass, and the requester releases them all the same."""
    opened, listed = first_round(pair, numerator=1, opens=Needs.DISTANCES)
    parameters = opened.sites.study.parameters
    hostile = np.zeros(parameters.dimension, dtype=np.uint64)
    hostile[0] = np.uint64(2 ** (parameters.range_bits - 1) - 1)  # just inside what every projection lets pass
    small = np.ones(SMALL, dtype=np.uint64)
    opened = OpenRound(
        opened.sites,
        opened.announcement,
        {site: hostile if site in (EARLY, OTHER, LAST) else small for site in SITES},
    )
    opened.sites.announce(opened.announcement)
    site, decision = asked(opened, listed, tmp_path, np.full(SMALL, 0.01, dtype=np.float32))
    with closing(site):
        for name in SITES:
            opened.contribute(name)
        opened.lock()
        opened.measure()
        assert all(opened.in_range().values())
        opened.release()
        a, _ = site.views()
        past = PastRelease(
            announcement=opened.announcement,
            weight_list=listed,
            agreed_set=present(a.agreed_set),
            release_set=present(a.release_set),
        )
        assert decision.accepted
        assert site.agent.take_release(past) is RoundEnd.DISCARDED
        assert site.agent.state.model_version == 0
        np.testing.assert_array_equal(site.agent.require_model(), MODEL)
        np.testing.assert_array_equal(site.agent.journal.load_model(0), MODEL)
        assert any("the model stays as it was" in event.text for event in site.events)
    pair.round(opens=Needs.NOTHING).finish()
