"""Sums and measurements over scripted sites: what they refuse for isolation, and what is measured once per model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.requester.own_update import make_probe, probe_file
from client_agent.requester.plan import new_plan
from client_agent.site.events import RoundEnd
from client_agent.study.isolation import note_sum
from harness.attack.scripted_agents import GRID, ROSTER, SITES, START, Federation, Round
from harness.attack.scripted_agents import study as scripted_study
from protocol.arithmetic.fixed_point import decode
from protocol.errors import AggregateOutOfBounds, ConfigurationError, ErrorCode, ProtocolViolation
from protocol.messages.control import OutcomeCause, Purpose, RoundState, RuleName, RuleSpec, Study
from protocol.parameters import Needs
from protocol.policy.memory import remember_skip
from protocol.rounds.evidence import PastRelease, check_release
from protocol.sharing import Side
from tests.unit.client_agent.benches import Bench, RequesterBench, contributor_bench, requester_bench
from tests.unit.client_agent.federation import ended_round
from tests.unit.client_agent.test_decisions import MODEL, SIZE, decided, study_with
from tests.unit.parties import announcement
from tests.unit.servers.ending_rounds import FIVE

# --- measured once ----------------------------------------------------------------------------------------------------

MALLOWS = RuleSpec(name=RuleName.MALLOWS)
OF = scripted_study("measured", rule=MALLOWS)
FOUR = SITES[:4]


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Federation]:
    with Federation(tmp_path) as federation:
        yield federation


def measure(sites: Federation, number: int, version: int = 0, of: Study = OF, **changes: Any) -> Round:
    """A measurement of everybody; nothing is released."""
    asked = {"listed": SITES, "end": None} | changes
    return sites.round(of, number, version=version, purpose=Purpose.MEASURE, **asked)


def all_refuse(made: Round, clause: str) -> None:
    assert set(made.refused) == set(made.decisions)
    assert {reason.split(":")[0] for reason in made.refused.values()} == {clause}
    assert not made.sum.any(), "nothing is encoded"


MEASURES: dict[str, Any] = {"opens": Needs.PAIRS, "purpose": Purpose.MEASURE, "model_version": 0, "listed": FIVE[1:]}


def test_a_second_one_of_a_model_is_refused_whoever_is_listed_and_however_the_first_ended(sites: Federation) -> None:
    assert measure(sites, 1).refused == {}
    all_refuse(measure(sites, 2), "measured_twice")
    all_refuse(measure(sites, 3, listed=FOUR), "measured_twice")
    for site in SITES:
        sites.restart(site)
    all_refuse(measure(sites, 4), "measured_twice")


def test_a_sum_opens_no_pairs_and_a_measurement_nothing_else(sites: Federation) -> None:
    """Pairs of weighted updates beside those of unweighted ones would tell products of updates."""
    all_refuse(sites.round(OF, 1, SITES, version=0, opens=Needs.PAIRS), "measured_for_nothing")
    assert sites.round(OF, 2, SITES, version=0, opens=Needs.NORMS).refused == {}
    with pytest.raises(ValueError, match="a measurement opens pairs"):
        announcement(OF.digest(), **(MEASURES | {"opens": Needs.DISTANCES}))


def test_it_leaves_every_other_memory_as_it_was(sites: Federation) -> None:
    assert sites.round(OF, 1, SITES, version=0, numerators={"c1": GRID - 9}).refused == {}
    for site in SITES:
        sites.serve(OF, site, START / 2, 1)
    before = {site: sites.agent(site, OF).state.memory for site in SITES}
    sums = {site: sites.agent(site, OF).context.sums.rounds() for site in SITES}
    assert measure(sites, 2, version=1, model=START / 2).refused == {}
    for site in SITES:
        after = sites.agent(site, OF).state.memory
        kept = ("last_listed", "summed_list", "summed_requester", "unsettled", "left_out")
        assert {field: getattr(after, field) for field in kept} == {
            field: getattr(before[site], field) for field in kept
        }
        assert (after.measured_rounds, after.apart) == ((), 2)
        assert sites.agent(site, OF).context.sums.rounds() == sums[site]


def test_its_evidence_is_that_of_no_release(sites: Federation) -> None:
    """The requester signs a release set for it, and sends it to sites as one of a sum."""
    made = measure(sites, 1)
    with pytest.raises(ProtocolViolation, match="its vectors are never summed"):
        check_release(made.past, ROSTER, OF.digest())
    with pytest.raises(ProtocolViolation, match="its vectors are never summed"):
        sites.agent("c1", OF).take_release(made.past)


# --- measured at a site -----------------------------------------------------------------------------------------------

STUDY = study_with(RuleName.MALLOWS, grid=32)
SHRINKAGE = study_with(RuleName.SHRINKAGE, grid=32)
SITE_MEASURES: dict[str, Any] = {"purpose": Purpose.MEASURE, "opens": Needs.PAIRS}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Bench]:
    with contributor_bench(tmp_path, STUDY, MODEL) as made:
        yield made


class TestContributor:
    def test_it_shares_its_update_with_weight_1_and_remembers_the_round(self, site: Bench) -> None:
        decision = decided(site, 1, **SITE_MEASURES)
        assert decision.accepted
        site.contributor.encode(decision.announcement, 32)
        encoded = site.contributor.encoded_file(decision.announcement)
        assert encoded.length == SIZE
        assert site.contributor.state.memory.apart == 1
        assert not site.contributor.context.sums.rounds()

    def test_a_skip_that_it_did_not_see_comes_with_the_next_list(self, site: Bench) -> None:
        """Signed by both servers; with one signature it says nothing."""
        assert decided(site, 1, **SITE_MEASURES).accepted
        assert decided(site, 2, **SITE_MEASURES).reason.startswith("measured_twice: ")
        skip = ended_round(STUDY.digest(), cause=OutcomeCause.TOO_FEW_CONTRIBUTORS)
        forged = skip.model_copy(update={"signatures": skip.signatures[:1]})
        assert decided(site, 3, skipped=(forged,), **SITE_MEASURES).code is ErrorCode.BAD_SIGNATURE
        assert site.contributor.state.memory.apart == 1
        assert decided(site, 4, skipped=(skip,), **SITE_MEASURES).accepted
        assert site.contributor.state.memory.apart == 4

    def test_updates_are_numbered_by_the_model(self, site: Bench) -> None:
        """Measurements come in between, and a site that was away does not know how many."""
        assert site.contributor.update_number(17, 2) == 3
        beyond = decided(site, 9, model_version=STUDY.rounds, opens=Needs.NORMS)
        assert f"round 9 is update {STUDY.rounds + 1} of a study with {STUDY.rounds} rounds" in beyond.reason


# --- probing ----------------------------------------------------------------------------------------------------------

PROBED_STUDY = study_with(RuleName.INFLUENCE, grid=4)


@pytest.fixture
def probing(tmp_path: Path) -> Iterator[RequesterBench]:
    with requester_bench(tmp_path, PROBED_STUDY, MODEL) as made:
        yield made


def test_a_probe_is_made_once_and_knows_its_length_and_the_own_influence(probing: RequesterBench) -> None:
    """The bench's update is .01 everywhere and its probe the opposite: <g, v> = -20 * .0001."""
    owner = probing.requester
    announced = new_plan(owner).announcement.message
    owner.encode(announced, PROBED_STUDY.parameters.weight_grid)
    probe = make_probe(owner, announced)
    parameters = PROBED_STUDY.parameters
    # each factor is rounded by less than one ring unit, against .01 everywhere
    assert abs(probe.inner_product + SIZE * 0.01**2) <= SIZE * (2 * 0.01 + 1 / parameters.scale) / parameters.scale
    # .01 is off by 2^-24 of itself as a float32; the rest is float64
    assert probe.norm == pytest.approx(0.01 * np.sqrt(SIZE), rel=2.0**-23)
    encoded = probe_file(owner, 1)(0, SIZE)
    assert np.max(np.abs(decode(encoded, parameters) + 0.01)) <= 1 / parameters.scale + 0.01 * 2.0**-24
    owner.learner._update = np.ones(SIZE, dtype=np.float32)  # type: ignore[attr-defined]
    assert make_probe(owner, announced) == probe
    np.testing.assert_array_equal(probe_file(owner, 1)(0, SIZE), encoded)


def test_a_record_that_a_power_cut_left_alone_is_no_encoding(probing: RequesterBench) -> None:
    """Records and what they speak of become durable together: either may be missing then, and nothing was sent."""
    owner = probing.requester
    announced = new_plan(owner).announcement.message
    update = owner.encode(announced, PROBED_STUDY.parameters.weight_grid)
    probe = make_probe(owner, announced)
    for file in (owner.encoded_file(announced), probe_file(owner, 1)):
        file.path.unlink()
    assert owner.encode(announced, PROBED_STUDY.parameters.weight_grid).norm == pytest.approx(update.norm)
    assert make_probe(owner, announced).norm == pytest.approx(probe.norm)
    for file in (owner.encoded_file(announced), probe_file(owner, 1)):
        assert file(0, SIZE).size == SIZE


def test_without_validation_data_no_study_is_begun(probing: RequesterBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(model: np.ndarray) -> np.ndarray:
        raise ConfigurationError("put examples into validation.npz")

    monkeypatch.setattr(probing.requester.learner, "probe", lacking)
    with pytest.raises(ConfigurationError, match=r"validation\.npz"):
        probing.requester.run()
    assert probing.servers[Side.A].sent == {}
    assert probing.requester.state.finished is None


# --- isolated sums ----------------------------------------------------------------------------------------------------


ABOVE, BELOW, ACROSS = SITES[:3], SITES[3:6], SITES[1:6]
"""The third less the second less the first is the first site's update, with its sign turned."""
WITHOUT_1 = SITES[1:4]


def refused_for_isolation(made: Round, *asked: str) -> None:
    """Everybody who was asked keeps its update, and says why."""
    assert set(made.refused) == set(asked)
    for reason in made.refused.values():
        assert reason.startswith("isolation: ")


def test_everybody_who_is_asked_says_why_and_encodes_nothing(sites: Federation) -> None:
    of = scripted_study()
    assert sites.round(of, 1, FOUR, version=0).refused == {}
    second = sites.round(scripted_study("second"), 1, WITHOUT_1, version=0)
    refused_for_isolation(second, *WITHOUT_1)
    assert not second.sum.any()
    assert not list(sites.state_dir("c2").rglob("studies/second/rounds/000001/encoded*"))


def test_the_same_list_admits_that_one_site_is_dropped(sites: Federation) -> None:
    """Four are listed again, but three would do: whoever is then left out is shown by the difference."""
    of = scripted_study()
    assert sites.round(of, 1, FOUR, version=0).refused == {}
    refused_for_isolation(sites.round(of, 2, FOUR, version=1, least=3, end=RoundState.SKIPPED), *FOUR)
    assert sites.round(scripted_study("third"), 1, FOUR, version=0, least=4).refused == {}


# --- sums of one study that no site sees together ---


def serve(sites: Federation, of: Study, version: int) -> None:
    """As if everybody had taken the checkpoint; the model stays where it is, and so do the updates."""
    for site in SITES:
        sites.serve(of, site, START, version)


def discarded(sites: Federation, of: Study, number: int, listed: tuple[str, ...], version: int) -> Round:
    """A sum that is opened and steps no model: the requester's own update made it longer than any can be."""
    made = sites.round(of, number, listed, version=version, end=None)
    assert made.refused == {}

    def beyond(_: PastRelease) -> np.ndarray:
        raise AggregateOutOfBounds("longer than everybody's clip norm allows")

    for site in listed:
        agent = sites.agent(site, of)
        agent.average = beyond  # type: ignore[method-assign, assignment]
        assert agent.take_release(made.past) is RoundEnd.DISCARDED
    return made


def test_discarded_sums_that_are_asked_again_make_no_site_less_blind(sites: Federation) -> None:
    """Every site counts two settled sums before the third list, on version 2; two more were opened behind its back."""
    of = scripted_study()
    discarded(sites, of, 1, ABOVE, 0)
    assert sites.round(of, 2, ABOVE, version=0).refused == {}
    serve(sites, of, 1)
    discarded(sites, of, 3, BELOW, 1)
    assert sites.round(of, 4, BELOW, version=1).refused == {}
    serve(sites, of, 2)
    refused_for_isolation(sites.round(of, 5, ACROSS, version=2, least=5), *ACROSS)


def test_a_round_that_only_the_requester_calls_released_makes_no_site_less_blind(sites: Federation) -> None:
    """Round 2 was locked and skipped by both servers, and is told with a release set; round 3 is not told at all."""
    of = scripted_study()
    assert sites.round(of, 1, ABOVE, version=0).refused == {}
    serve(sites, of, 1)
    never = sites.round(of, 2, SITES[4:], version=1, end=RoundState.SKIPPED)
    for site in SITES[4:]:
        agent = sites.agent(site, of)
        agent.save(memory=remember_skip(agent.state.memory, 2))
    assert sites.round(of, 3, BELOW, version=1).refused == {}
    serve(sites, of, 2)
    made = sites.round(of, 4, ACROSS, version=2, least=5, previous=never.past)
    refused_for_isolation(made, *ACROSS)


def test_a_study_goes_on_over_other_sites_where_everybody_knows_of_every_round(sites: Federation) -> None:
    """Rounds 1, which was discarded, and 2 are told where they were missed; round 3 was skipped by both servers."""
    of = scripted_study()
    first = discarded(sites, of, 1, ABOVE, 0)
    second = sites.round(of, 2, ABOVE, version=0)
    for site in BELOW:
        note_sum(sites.agent(site, of), first.past)
    sites._skip(of, 3, SITES)
    serve(sites, of, 1)
    assert sites.round(of, 4, ACROSS, version=1, least=5, previous=second.past).refused == {}
