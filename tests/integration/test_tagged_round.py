"""Rounds with tags over two servers: nothing is served before go, what each side said stands (docs/protocol.md 15)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from protocol.errors import ErrorCode
from protocol.messages import paths
from protocol.messages.control import Go, OutcomeCause, RoundState, Signed, TagsFailed, TagShares, sign
from protocol.sharing import Side
from protocol.tags import wrong_tags
from tests.integration.tagged import finish, require_sum, signed_end, tagged_sites, to_committed, to_measured
from tests.integration.test_server_round import SITES
from tests.kit.processes import Federation, servers_in_memory
from tests.kit.tagged_requester import TaggedRequester

STUDIES = itertools.count()
ROUNDS = pytest.mark.parametrize("number", [1, 2], ids=["odd", "even"])


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with servers_in_memory(tmp_path_factory.mktemp("tagged"), SITES) as running:
        yield running


@pytest.fixture
def sites(federation: Federation) -> Iterator[TaggedRequester[Federation]]:
    made = tagged_sites(federation, f"tagged-{next(STUDIES)}")
    yield made
    made.close()


def walked(sites: TaggedRequester[Federation], number: int) -> int:
    """Earlier rounds are over."""
    for before in range(1, number):
        to_committed(sites, before)
        finish(sites, before)
    return number


def refused(sites: TaggedRequester, site: str, side: Side, method: str, path: str, body: bytes = b"") -> str:
    answer = sites.clients[site].send(side, method, path, body)
    assert answer.status_code >= 400
    return str(answer.json()["code"])


def place(sites: TaggedRequester, template: str, number: int) -> str:
    return sites.path(template, round=number, attempt=1)


@ROUNDS
def test_nothing_is_served_before_go_and_what_a_server_said_it_says_again(
    sites: TaggedRequester[Federation], number: int
) -> None:
    views = to_committed(sites, walked(sites, number))
    output = sites.path(paths.OUTPUT, round=number)
    checks = [sites.show_seed(side, number) for side in Side]
    verdict = sites.verdict(views)
    for side in Side:
        assert refused(sites, SITES[1], side, "GET", output) == ErrorCode.UNKNOWN_RESOURCE
        assert sites.committed(number)[side].go is None
    sites.go(verdict)
    require_sum(sites, number)
    sites.go(verdict)
    released = sites.released(number)
    assert [sites.show_seed(side, number) for side in Side] == checks == list(verdict.message.checks)
    assert [released[side].commitment for side in Side] == [views[side].commitment for side in Side]
    assert [released[side].go for side in Side] == [verdict] * 2


@pytest.mark.parametrize(("number", "to"), [(1, Side.A), (2, Side.B)], ids=["odd, to A", "even, to B"])
def test_a_go_to_one_server_reaches_both(sites: TaggedRequester[Federation], number: int, to: Side) -> None:
    """B's is fetched by A, since B calls nobody."""
    sites.go(sites.verdict(to_committed(sites, walked(sites, number))), [to])
    require_sum(sites, number)


@pytest.mark.parametrize(("number", "off"), [(1, 1), (2, 2**63)], ids=["odd", "even, by 2^63"])
def test_a_site_with_wrong_tags_is_named_and_nothing_is_served(
    sites: TaggedRequester[Federation], number: int, off: int
) -> None:
    views = to_committed(sites, walked(sites, number), {SITES[2]: off})
    verdict = sites.judged(views, TagsFailed)
    shares = sites.fail(verdict)
    found = wrong_tags(verdict.message, sites.release_of(views[Side.A]), shares, sites.federation.roster)
    assert (found.sites, found.server_lied) == ((SITES[2],), False)
    require_errors(shares, off)
    for side in Side:
        skipped = sites.wait_round(side, number, RoundState.SKIPPED)
        assert signed_end(skipped) == (RoundState.SKIPPED, OutcomeCause.TAGS_FAILED)
        output = sites.path(paths.OUTPUT, round=number)
        assert refused(sites, SITES[1], side, "GET", output) == ErrorCode.UNKNOWN_RESOURCE
        require_nothing_left(sites, side)
    assert sites.fail(verdict) == shares
    go = sign(Go(**dict(verdict.message)), SITES[0], sites.me.keys.signing)
    for side in Side:
        said = refused(sites, SITES[0], side, "PUT", place(sites, paths.GO, number), go.canonical())
        assert said == ErrorCode.PROTOCOL_VIOLATION
    to_committed(sites, number + 1)
    finish(sites, number + 1)


def require_errors(shares: tuple[Signed[TagShares], Signed[TagShares]], off: int) -> None:
    """Each server's shares are words that say nothing; only the wrong site's add up to something."""
    a, b = (one.message.values for one in shares)
    for at, (mine, theirs) in enumerate(zip(a, b, strict=True)):
        total = [(int(x, 16) + int(y, 16)) % 2**64 for x, y in zip(mine, theirs, strict=True)]
        assert total == ([-off % 2**64, 0] if at == 2 else [0, 0])
        assert 0 not in {int(word, 16) for word in (*mine, *theirs)}


def require_nothing_left(sites: TaggedRequester[Federation], side: Side, state: str = "skipped") -> None:
    """Neither the vector that was committed to nor a share of the round is on disk."""
    folder: Path = sites.federation.folder / f"operator-{side.value}" / "data" / "shares"
    digest = sites.study.digest()
    with closing(sites.federation.database(side)) as database:
        ended = "select output_file from rounds where study = ? and state = ?"
        assert database.execute(ended, (digest, state)).fetchall() == [(None,)]
        columns = (("output_file", "rounds"), ("query_file", "rounds"), ("file", "contributions"), ("file", "mail"))
        named = {name for column, table in columns for (name,) in database.execute(f"select {column} from {table}")}
    assert {path.name for path in folder.iterdir()} <= named


@ROUNDS
def test_without_go_both_sign_a_skip_and_the_requester_was_absent(
    sites: TaggedRequester[Federation], number: int
) -> None:
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


def test_seeds_and_goes_that_are_none(sites: TaggedRequester[Federation]) -> None:
    current = to_measured(sites, 1)
    for side in Side:
        with pytest.raises(AssertionError, match="wrong_round"):
            sites.show_seed(side, 1)
    sites.release(current)
    views = sites.committed(1)
    for side in Side:
        with pytest.raises(AssertionError, match="commitment_mismatch"):
            sites.show_seed(side, 1, seed=bytes(32))
    commitments, path = sites.commitments(views), place(sites, paths.GO, 1)
    verdict = sites.verdict(views)
    changed = verdict.message.checks[1].message.model_copy(update={"values": ("00" * 8, "00" * 8)})
    forged = sign(changed, "operator-b", sites.federation.keys("operator-b").signing)
    mine = sites.me.keys.signing
    wrong = (
        (sign(verdict.message, SITES[1], sites.clients[SITES[1]].keys.signing), ErrorCode.BAD_SIGNATURE),
        (
            sign(Go(**{**dict(verdict.message), "checks": (verdict.message.checks[0], forged)}), SITES[0], mine),
            ErrorCode.PROTOCOL_VIOLATION,
        ),
        (
            sign(Go(**{**dict(verdict.message), "commitments": commitments[::-1]}), SITES[0], mine),
            ErrorCode.BAD_SIGNATURE,
        ),
    )
    for side in Side:
        for one, code in wrong:
            assert refused(sites, SITES[0], side, "PUT", path, one.canonical()) == code
        assert refused(sites, SITES[1], side, "PUT", path, verdict.canonical()) == ErrorCode.NOT_LISTED
    finish(sites, 1)


def test_a_study_that_ends_leaves_no_sum_that_was_not_served(sites: TaggedRequester[Federation]) -> None:
    to_committed(sites, 1)
    sites.end()
    for side in Side:
        require_nothing_left(sites, side, "committed")


def test_announcements_without_a_seed_and_shares_without_tags_are_refused(sites: TaggedRequester[Federation]) -> None:
    announcement = sites.announcement(1)
    plain = announcement.model_copy(update={"tag_seed_hash": None})
    body = sign(plain, SITES[0], sites.me.keys.signing).canonical()
    for side in Side:
        code = refused(sites, SITES[0], side, "POST", sites.path(paths.ANNOUNCEMENT, round=1), body)
        assert code == ErrorCode.MALFORMED_MESSAGE
    sites.announce(announcement)
    sealed = sites.seal_contribution(SITES[1], np.zeros(20, dtype=np.uint64), announcement)
    with pytest.raises(AssertionError, match=r"sends this server a .* of length 24"):
        sites.contribute(SITES[1], sealed, 1)
