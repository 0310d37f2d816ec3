"""The contract of every store: over SQLite, and over PostgreSQL where it is installed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from protocol.errors import BadSignature, CorrelationReused, UnknownStudy
from protocol.messages.control import Announcement, ContributedRound, Purpose, RoundState, Signed, StudyState
from protocol.rounds.states import RoundKey
from servers.store.database import open_engine
from servers.store.migrate import upgrade
from servers.store.records import A_NEW_STUDY, Answer, AnswerKind, CorrelationUse, MailRecord, Refusal, RoundRecord
from servers.store.sql import SqlStore
from servers.store.tables import METADATA
from tests.contract.records import ANNOUNCEMENT, KEY, RECORD, ROUND, contribution
from tests.kit.databases import new_database
from tests.kit.present import present
from tests.unit.tags.halves import Release


def test_migrations_build_exactly_the_tables(empty: str) -> None:
    upgrade(empty)
    upgrade(empty)
    engine = open_engine(empty)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    engine.dispose()


def test_a_store_is_asked_inside_of_a_change_and_from_another_thread(store: SqlStore) -> None:
    """Both have connections of their own: they see what was committed before."""
    store.add_study(RECORD)
    store.add_round(ROUND)
    seen: list[RoundRecord | None] = []

    def change(record: RoundRecord) -> RoundRecord:
        seen.append(store.current_round(RECORD.digest))
        return replace(record, state=RoundState.COLLECTING)

    changed = store.change_round(KEY, change)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(store.current_round, RECORD.digest).result() == changed
    assert seen == [ROUND]
    assert store.current_round(RECORD.digest) == changed


def test_a_change_that_fails_leaves_nothing_and_the_next_call_works(store: SqlStore) -> None:
    store.add_study(RECORD)
    store.add_round(ROUND)

    def refuse(record: RoundRecord) -> RoundRecord:
        raise KeyError(record.key.round)

    with pytest.raises(KeyError):
        store.change_round(KEY, refuse, then_add=replace(ROUND, key=RoundKey(RECORD.digest, 1, 2)))
    assert store.current_round(RECORD.digest) == ROUND
    assert store.change_round(KEY, lambda r: replace(r, state=RoundState.COLLECTING)).state is RoundState.COLLECTING


def test_studies(store: SqlStore, changed: list[str]) -> None:
    assert store.study_named("trial") is None
    with pytest.raises(UnknownStudy):
        store.study(RECORD.digest)
    store.add_study(RECORD)
    assert store.studies() == [RECORD]
    paused = store.change_study(RECORD.digest, lambda r: replace(r, state=StudyState.PAUSED, reason="why"))
    assert paused == replace(RECORD, state=StudyState.PAUSED, reason="why", cursor=2)
    assert store.study_named("trial") == store.study(RECORD.digest) == paused
    store.add_ready(RECORD.digest, "site-b")
    store.add_ready(RECORD.digest, "site-b")
    assert store.ready_sites(RECORD.digest) == ("site-b",)
    assert store.study(RECORD.digest).cursor == 3
    assert store.study_digests() == [(RECORD.name, RECORD.digest)]
    assert changed == [RECORD.digest, A_NEW_STUDY, RECORD.digest, RECORD.digest]


def test_rounds_and_what_is_answered_again(store: SqlStore, url: str) -> None:
    store.add_study(RECORD)
    assert store.current_round(RECORD.digest) is None
    store.add_round(ROUND)
    again = replace(ROUND, key=RoundKey(RECORD.digest, 1, 2))
    answer = Answer(AnswerKind.OPENING, "", b"sealed")
    burnt = store.change_round(
        KEY, lambda r: replace(r, state=RoundState.BURNT, own_nonce=b"n" * 32), answers=[answer], then_add=again
    )
    release = Release()
    tagged = store.change_round(
        again.key,
        lambda r: replace(
            r,
            state=RoundState.COMMITTED,
            commitment=release.signed_commitments()[0],
            committed_at_s=1.5,
            tag_seed=b"s" * 32,
            tag_check=release.signed_checks()[0],
            go=release.verdict(),
            tags_failed=Release(changed=1).verdict(),
        ),
    )
    reopened = SqlStore(url, lambda _study: None)
    assert reopened.round(again.key) == tagged
    store.change_round(again.key, lambda _: again)
    assert reopened.round(KEY) == burnt
    assert burnt.own_nonce == b"n" * 32
    assert reopened.answer(KEY, AnswerKind.OPENING) == answer
    assert reopened.answer(KEY, AnswerKind.PRODUCTS) is None
    assert reopened.current_round(RECORD.digest) == reopened.latest_attempt(RECORD.digest, 1) == again
    assert reopened.latest_attempt(RECORD.digest, 2) is None
    assert reopened.round(RoundKey(RECORD.digest, 9, 9)) is None
    reopened.close()


def test_a_correlation_serves_once(store: SqlStore) -> None:
    store.add_study(RECORD)
    store.add_round(ROUND)
    use = CorrelationUse(KEY, "site-b", "55" * 32, 0, 0)
    store.mark_used([use])
    other_attempt = RoundKey(RECORD.digest, 1, 2)
    for reused in (
        use,
        replace(use, key=other_attempt),
        replace(use, site="site-a"),
        replace(use, index=1),
    ):
        with pytest.raises(CorrelationReused):
            store.mark_used([reused])
    fresh = replace(use, site="site-a", index=2)
    with pytest.raises(CorrelationReused):
        store.change_round(KEY, lambda r: replace(r, state=RoundState.MEASURED), used=[fresh, use])
    unchanged = present(store.round(KEY))
    assert unchanged.state is RoundState.ANNOUNCED, "all of a change is undone"
    assert (store.correlations_used(KEY), store.correlations_used(other_attempt)) == (1, 0)


def test_contributions_and_their_files(store: SqlStore) -> None:
    store.add_study(RECORD)
    store.add_round(ROUND)
    assert store.contribution(KEY, "site-b") is None
    store.add_contribution(contribution("site-b"), RoundState.COLLECTING)
    stored = present(store.round(KEY))
    assert stored.state is RoundState.COLLECTING
    assert store.contributions(KEY) == [contribution("site-b")]
    assert store.contributions_held(KEY) == 1
    store.change_round(KEY, lambda r: replace(r, query_file="query-1", output_file="output-1"))
    assert store.files() == {"share-1", "query-1", "output-1"}
    assert store.forget_share_files(RECORD.digest, before_round=1) == []
    assert sorted(store.forget_share_files(RECORD.digest, before_round=2)) == ["query-1", "share-1"]
    assert store.contribution(KEY, "site-b") == contribution("site-b", None)
    store.add_contribution(contribution("site-a", "share-2"), RoundState.COLLECTING)
    assert store.forget_attempt_files(KEY) == ["share-2"]
    assert store.forget_outputs(RECORD.digest, before_round=2) == ["output-1"]
    assert store.files() == set()


def test_every_contribution_is_a_change_of_the_database(store: SqlStore) -> None:
    """A copy that lacks one of them is an older one, also where no view shows it."""
    store.add_study(RECORD)
    store.add_round(ROUND)
    counts = [store.changes()]
    for number, site in enumerate(("site-a", "site-b")):
        store.add_contribution(contribution(site, f"share-{number}"), RoundState.COLLECTING)
        counts.append(store.changes())
    assert counts == [counts[0], counts[0] + 1, counts[0] + 2]


def test_rounds_that_a_site_is_in(store: SqlStore) -> None:
    """Rounds of updates that were not skipped, in pages: what a site's lost memory is compared with."""
    store.add_study(RECORD)
    purposes = {1: Purpose.UPDATE, 2: Purpose.COUNTS, 3: Purpose.UPDATE, 4: Purpose.UPDATE}
    for number, purpose in purposes.items():
        key = replace(KEY, round=number)
        told = ANNOUNCEMENT.model_copy(update={"round": number, "purpose": purpose})
        store.add_round(replace(ROUND, key=key, announcement=Signed[Announcement](message=told)))
        store.add_contribution(replace(contribution("site-b"), key=key), RoundState.COLLECTING)
    store.change_round(replace(KEY, round=3), lambda r: replace(r, state=RoundState.SKIPPED))
    one, four = (
        ContributedRound(study="trial", study_digest=RECORD.digest, round=n, attempt=1, body_digest="44" * 32)
        for n in (1, 4)
    )
    assert store.contributed("site-b", ("0" * 64, 0), 10) == [one, four]
    assert store.contributed("site-b", ("0" * 64, 0), 1) == [one]
    assert store.contributed("site-b", (RECORD.digest, 1), 10) == [four]
    assert store.contributed("site-b", ("f" * 64, 0), 10) == []
    assert store.contributed("site-a", ("0" * 64, 0), 10) == []
    store.forget_share_files(RECORD.digest, before_round=9)
    assert store.contributed("site-b", (RECORD.digest, 1), 10) == [four], "a deleted share was still summed"


def test_answers_go_with_earlier_rounds_and_masks_with_outputs(store: SqlStore) -> None:
    store.add_study(RECORD)
    keys = [replace(KEY, round=number) for number in (1, 2, 3)]
    for key in keys:
        store.add_round(replace(ROUND, key=key))
        store.change_round(
            key,
            lambda r: replace(r, mask_seed=b"m" * 32, output_file=f"output-{r.key.round}"),
            answers=[Answer(kind, "", b"sealed") for kind in AnswerKind],
        )

    def answered() -> list[int]:
        return [key.round for key in keys for kind in AnswerKind if store.answer(key, kind) is not None]

    assert store.forget_share_files(RECORD.digest, before_round=1) == []
    assert answered() == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    store.forget_share_files(RECORD.digest, before_round=3)
    assert answered() == [3, 3, 3], "what a round under way answers again stays"
    assert store.forget_outputs(RECORD.digest, before_round=2) == ["output-1"]
    assert store.forget_outputs(RECORD.digest, before_round=3) == ["output-2"]
    assert [made.mask_seed is not None for made in map(store.round, keys) if made is not None] == [False, False, True]
    store.forget_share_files(RECORD.digest, before_round=4)
    assert answered() == []


def test_forgetting_costs_the_same_after_many_rounds(tmp_path: Path) -> None:
    """Counted in steps of SQLite's machine; a study must not grow slower with every round."""
    store, steps = SqlStore(new_database(tmp_path / "store.db"), lambda _study: None), [0]
    store.add_study(RECORD)

    def count() -> int:
        steps[0] += 1
        return 0

    def steps_of(number: int) -> int:
        store.add_round(replace(ROUND, key=replace(KEY, round=number)))
        site = replace(contribution("site-b"), key=replace(KEY, round=number), file=f"share-{number}")
        store.add_contribution(site, RoundState.COLLECTING)
        driver = present(store._connections.reading())
        driver.set_progress_handler(count, 1)
        steps[0] = 0
        forgotten = store.forget_share_files(RECORD.digest, before_round=number)
        store.forget_outputs(RECORD.digest, before_round=number - 9)
        driver.set_progress_handler(None, 1)
        assert forgotten == ([f"share-{number - 1}"] if number > 1 else [])
        return steps[0]

    taken = [steps_of(number) for number in range(1, 121)]
    store.close()
    assert max(taken[100:]) <= 1.2 * max(taken[15:35]), taken


def test_mail(store: SqlStore) -> None:
    store.add_study(RECORD)
    mail = MailRecord(RECORD.digest, "site-a", "site-b", "weights-1", "66" * 32, "mail-1")
    everybody = replace(mail, recipient="every-site", topic="checkpoint-0", file="mail-2")
    store.add_mail(mail)
    store.add_mail(everybody)
    assert store.mail(RECORD.digest, "site-a", "site-b", "weights-1") == mail
    assert store.mail(RECORD.digest, "site-b", "site-b", "weights-1") is None
    assert store.mail_for(RECORD.digest, ("site-b", "every-site")) == [everybody, mail]
    assert store.mail_for(RECORD.digest, ("site-a",)) == []
    assert store.files() == {"mail-1", "mail-2"}
    newer = replace(mail, topic="weights-2", file="mail-3")
    store.add_mail(newer, [mail, everybody])
    assert store.mail_for(RECORD.digest, ("site-b", "every-site")) == [newer]
    assert store.files() == {"mail-3"}


def test_nonces_refusals_and_boots(store: SqlStore) -> None:
    store.ready()
    store.remember_nonce("site-a", "n" * 16, 100.0)
    store.remember_nonce("site-b", "n" * 16, 100.0)
    with pytest.raises(BadSignature, match="nonce"):
        store.remember_nonce("site-a", "n" * 16, 101.0)
    store.purge_nonces(100.5)
    store.remember_nonce("site-a", "n" * 16, 102.0)
    refusal = Refusal(RECORD.digest, "site-b", "conflicting_message", "why", 5.0)
    store.add_refusal(refusal)
    assert store.refusals(RECORD.digest) == [refusal]
    assert (store.next_boot(), store.next_boot()) == (1, 2)
