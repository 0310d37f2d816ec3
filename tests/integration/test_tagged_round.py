"""Rounds with tags over two servers: nothing is served before go, what each side said stands (docs/protocol.md 15)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from harness.adversaries.scripted.sites import ScriptedSites
from harness.adversaries.scripted.tagged import TaggedSites
from protocol.errors import ErrorCode
from protocol.sharing import Side
from protocol.tags.verdicts import wrong_tags
from protocol.wire import paths
from protocol.wire.authentic import sign
from protocol.wire.messages import Go, OutcomeCause, RoundState, StudyState
from tests.integration.tagged import (
    SITES,
    finish,
    require_sum,
    signed_end,
    tagged_sites,
    to_committed,
    to_measured,
)
from tests.kit.processes import Federation
from tests.kit.servers_in_memory import servers_in_memory

STUDIES = itertools.count()
ROUNDS = pytest.mark.parametrize("number", [1, 2], ids=["odd", "even"])


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with servers_in_memory(tmp_path_factory.mktemp("tagged"), SITES) as running:
        yield running


@pytest.fixture
def sites(federation: Federation) -> Iterator[TaggedSites[Federation]]:
    made = tagged_sites(federation, f"tagged-{next(STUDIES)}")
    yield made
    made.close()


def walked(sites: TaggedSites[Federation], number: int) -> int:
    """Earlier rounds are over."""
    for before in range(1, number):
        to_committed(sites, before)
        finish(sites, before)
    return number


def refused(sites: ScriptedSites, site: str, side: Side, method: str, path: str, body: bytes = b"") -> str:
    answer = sites.clients[site].send(side, method, path, body)
    assert answer.status_code >= 400
    return str(answer.json()["code"])


def place(sites: ScriptedSites, template: str, number: int) -> str:
    return sites.path(template, round=number, attempt=1)


def test_three_rounds(sites: TaggedSites[Federation]) -> None:
    for number in (1, 2, 3):
        to_committed(sites, number)
        finish(sites, number)
    assert sites.view(Side.A).state is StudyState.OPEN


@ROUNDS
def test_nothing_is_served_before_go_and_nothing_is_shown_of_it(sites: TaggedSites[Federation], number: int) -> None:
    views = to_committed(sites, walked(sites, number))
    output = sites.path(paths.OUTPUT, round=number)
    verdict = sites.verdict(views)
    for side in Side:
        assert refused(sites, SITES[1], side, "GET", output) == ErrorCode.UNKNOWN_RESOURCE
        assert sites.committed(number)[side].go is None
    sites.go(verdict)
    require_sum(sites, number)


@ROUNDS
def test_what_a_server_said_it_says_again_in_the_same_bytes(sites: TaggedSites[Federation], number: int) -> None:
    views = to_committed(sites, walked(sites, number))
    first = [sites.show_seed(side, number) for side in Side]
    assert [sites.show_seed(side, number) for side in Side] == first
    assert {side: view.commitment for side, view in sites.committed(number).items()} == {
        side: view.commitment for side, view in views.items()
    }
    verdict = sites.verdict(views)
    sites.go(verdict)
    sites.released(number)
    sites.go(verdict)
    assert [sites.show_seed(side, number) for side in Side] == first
    require_sum(sites, number)


@ROUNDS
@pytest.mark.parametrize("to", list(Side))
def test_a_go_to_one_server_reaches_both(sites: TaggedSites[Federation], number: int, to: Side) -> None:
    verdict = sites.verdict(to_committed(sites, walked(sites, number)))
    sites.go(verdict, [to])
    require_sum(sites, number)


@ROUNDS
@pytest.mark.parametrize("off", [1, 2**63])
def test_a_site_with_wrong_tags_is_named_and_nothing_is_served(
    sites: TaggedSites[Federation], number: int, off: int
) -> None:
    views = to_committed(sites, walked(sites, number), {SITES[2]: off})
    verdict = sites.failed(views)
    shares = sites.fail(verdict)
    found = wrong_tags(verdict.message, sites.release_of(views[Side.A]), shares, sites.federation.roster)
    assert (found.sites, found.server_lied) == ((SITES[2],), False)
    for side in Side:
        skipped = sites.wait_round(side, number, RoundState.SKIPPED)
        assert signed_end(skipped) == (RoundState.SKIPPED, OutcomeCause.TAGS_FAILED)
        output = sites.path(paths.OUTPUT, round=number)
        assert refused(sites, SITES[1], side, "GET", output) == ErrorCode.UNKNOWN_RESOURCE
    assert sites.fail(verdict) == shares
    to_committed(sites, number + 1)
    finish(sites, number + 1)


def test_shares_of_honest_sites_say_nothing(sites: TaggedSites[Federation]) -> None:
    """Each server's shares are uniform words; an honest site's add up to zero whatever it sent."""
    views = to_committed(sites, 1, {SITES[3]: 7})
    verdict = sites.failed(views)
    a, b = (one.message.values for one in sites.fail(verdict))
    for place, (mine, theirs) in enumerate(zip(a, b, strict=True)):
        total = [(int(x, 16) + int(y, 16)) % 2**64 for x, y in zip(mine, theirs, strict=True)]
        assert total == ([2**64 - 7, 0] if place == 3 else [0, 0])
        assert 0 not in {int(word, 16) for word in (*mine, *theirs)}


@ROUNDS
def test_without_go_both_sign_a_skip_and_the_requester_was_absent(sites: TaggedSites[Federation], number: int) -> None:
    views = to_committed(sites, walked(sites, number), closes_in_s=5.0)
    verdict = sites.verdict(views)
    for side in Side:
        skipped = sites.wait_round(side, number, RoundState.SKIPPED, within_s=60)
        assert signed_end(skipped) == (RoundState.SKIPPED, OutcomeCause.GO_MISSING)
    for side in Side:
        late = refused(sites, SITES[0], side, "PUT", place(sites, paths.GO, number), verdict.canonical())
        assert late == ErrorCode.WRONG_ROUND
        assert refused(sites, SITES[1], side, "GET", sites.path(paths.OUTPUT, round=number)) == (
            ErrorCode.UNKNOWN_RESOURCE
        )


@ROUNDS
def test_a_wrong_seed_is_refused_and_the_right_one_is_taken_after_it(
    sites: TaggedSites[Federation], number: int
) -> None:
    to_committed(sites, walked(sites, number))
    for side in Side:
        with pytest.raises(AssertionError, match="commitment_mismatch"):
            sites.show_seed(side, number, seed=bytes(32))
    finish(sites, number)


def test_the_seed_is_not_taken_before_a_server_has_committed(sites: TaggedSites[Federation]) -> None:
    current = to_measured(sites, 1)
    for side in Side:
        with pytest.raises(AssertionError, match="wrong_round"):
            sites.show_seed(side, 1)
    sites.release(current)
    sites.committed(1)
    finish(sites, 1)


def test_what_is_no_go_is_refused(sites: TaggedSites[Federation]) -> None:
    views = to_committed(sites, 1)
    commitments, path = sites.commitments(views), place(sites, paths.GO, 1)
    verdict = sites.verdict(views)
    changed = verdict.message.checks[1].message.model_copy(update={"values": ("00" * 8, "00" * 8)})
    forged = sign(changed, "operator-b", sites.federation.keys("operator-b").signing)
    wrong = {
        "another signer's": sign(verdict.message, SITES[1], sites.clients[SITES[1]].keys.signing),
        "not zero": sign(
            Go(**{**dict(verdict.message), "checks": (verdict.message.checks[0], forged)}),
            SITES[0],
            sites.me.keys.signing,
        ),
        "commitments swapped": sign(
            Go(**{**dict(verdict.message), "commitments": commitments[::-1]}), SITES[0], sites.me.keys.signing
        ),
    }
    for side in Side:
        codes = [refused(sites, SITES[0], side, "PUT", path, one.canonical()) for one in wrong.values()]
        assert codes == [ErrorCode.BAD_SIGNATURE, ErrorCode.PROTOCOL_VIOLATION, ErrorCode.BAD_SIGNATURE]
        contributor = refused(sites, SITES[1], side, "PUT", path, verdict.canonical())
        assert contributor == ErrorCode.NOT_LISTED
    finish(sites, 1)


def test_a_go_that_b_alone_was_given_and_a_skip(sites: TaggedSites[Federation]) -> None:
    """B's go is fetched before the deadline counts: the round is released."""
    verdict = sites.verdict(to_committed(sites, 1))
    sites.go(verdict, [Side.B])
    require_sum(sites, 1)


def test_a_second_word_of_the_requester_is_refused(sites: TaggedSites[Federation]) -> None:
    views = to_committed(sites, 1, {SITES[1]: 3})
    failed = sites.failed(views)
    sites.fail(failed)
    go = sign(Go(**dict(failed.message)), SITES[0], sites.me.keys.signing)
    for side in Side:
        assert refused(sites, SITES[0], side, "PUT", place(sites, paths.GO, 1), go.canonical()) == (
            ErrorCode.PROTOCOL_VIOLATION
        )


def test_an_announcement_without_a_seed_is_refused(sites: TaggedSites[Federation]) -> None:
    plain = sites.announcement(1).model_copy(update={"tag_seed_hash": None})
    body = sign(plain, SITES[0], sites.me.keys.signing).canonical()
    for side in Side:
        code = refused(sites, SITES[0], side, "POST", sites.path(paths.ANNOUNCEMENT, round=1), body)
        assert code == ErrorCode.MALFORMED_MESSAGE


def test_shares_without_tags_are_refused(sites: TaggedSites[Federation]) -> None:
    announcement = sites.announcement(1)
    sites.announce(announcement)
    x = np.zeros(20, dtype=np.uint64)
    sealed = sites.seal_contribution(SITES[1], x, announcement)
    with pytest.raises(AssertionError, match=r"sends this server a .* of length 22"):
        sites.contribute(SITES[1], sealed, 1)


def test_nothing_of_a_skipped_round_is_left_on_disk(sites: TaggedSites[Federation]) -> None:
    verdict = sites.failed(to_committed(sites, 1, {SITES[1]: 3}))
    sites.fail(verdict)
    for side in Side:
        sites.wait_round(side, 1, RoundState.SKIPPED)
        folder: Path = sites.federation.folder / f"operator-{side.value}" / "data" / "shares"
        with sites.federation.database(side) as database:
            rows = database.execute("select output_file from rounds where study = ?", (sites.study.digest(),))
            assert rows.fetchall() == [(None,)]
            named = {name for (name,) in database.execute("select output_file from rounds") if name}
            named |= {name for (name,) in database.execute("select file from contributions") if name}
            named |= {name for (name,) in database.execute("select query_file from rounds") if name}
        database.close()
        assert {path.name for path in folder.iterdir()} <= named
