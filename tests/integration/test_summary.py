"""A summary over two real servers in memory is the table of the sites' protected tables (docs/protocol.md 17)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from client_agent.cli.study import app as study_app
from client_agent.site.events import EventKind, RoundEnd
from client_agent.study.results import SUMMARY_FILE, Summary
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import light_learner
from protocol.errors import Clause
from protocol.messages.control import (
    ColumnRole,
    ColumnSpec,
    ColumnType,
    EndCause,
    Purpose,
    Study,
    SummarySpec,
    TableSchema,
)
from protocol.policy.site_policy import SitePolicy
from protocol.summary.protection import FIRST_LINE, Protection, shared_vector
from protocol.summary.table_one import parse_scaling, scaling_of, table_one
from tests.integration.agents import (
    EROSION,
    REQUESTER,
    Federated,
    changed,
    journal,
    out_of_range,
    rounds_of,
    run_to_end,
    spec,
    study_for,
)
from tests.kit.present import present

SITES = (REQUESTER, "c1", "c2", "c3", "c4")
POLICY = SitePolicy(least_isolation=0.0, may_summarise=True, may_share_second_moments=True)
RANGES = ((0.0, 100.0), (-5.0, 5.0), (0.0, 1.0), (-1.0, 1.0), (0.0, 300.0))
SCHEMA = TableSchema(
    columns=(
        *(ColumnSpec(name=f"x{n}", type=ColumnType.NUMBER, range=of) for n, of in enumerate(RANGES)),
        ColumnSpec(
            name="stage", type=ColumnType.CATEGORY, role=ColumnRole.TARGET, categories=("a", "b"), labels=("a", "b")
        ),
    )
)


def columns_of(site: str) -> tuple[np.ndarray, ...]:
    """Five numbers, some missing, and a stage; c4 has few rows."""
    place = SITES.index(site)
    rng, rows = np.random.default_rng(place), 8 if site == "c4" else 80 + 10 * place
    numbers = [rng.normal((low + high) / 2, (high - low) / 5, rows) for low, high in RANGES]
    numbers[2] = (numbers[2] > 0.5).astype(np.float64)
    for values in numbers[:2]:
        values[rng.random(rows) < 0.2] = np.nan
    return (*numbers, (rng.random(rows) < 0.3).astype(np.int64))


def put_tables(run: Federated, sites: tuple[str, ...] = SITES) -> None:
    """Write the tables that ``moiety data prepare`` leaves beside the examples."""
    for site in sites:
        folder = run.state(site).parent / "data"
        assert (folder / "train.npz").is_file()
        rows: dict[str, Any] = {f"column{n}": values for n, values in enumerate(columns_of(site))}
        names = [column.name for column in SCHEMA.columns]
        np.savez(folder / "rows.npz", own_names=names, named_in=[FIRST_LINE] * len(names), **rows)
        kept = {"table": json.loads(SCHEMA.canonical()), "fitted": []}
        (folder / "transformation.json").write_text(json.dumps(kept))


def summary_study(run: Federated, name: str, rounds: int = 0) -> Study:
    plain = study_for(run, name, EROSION, max(rounds, 1), 20.0)
    asked = SummarySpec(bins=8, most_rows=1000, second_moments=True)
    return changed(plain, rounds=rounds, data_schema=SCHEMA, summary=asked)


def kept(run: InMemoryFederation, site: str, name: str) -> Summary | None:
    own = journal(run, site, name)
    return own.read(own.folder / SUMMARY_FILE, Summary)


def key_of(run: InMemoryFederation, site: str) -> bytes:
    (path,) = run.state(site).glob("cohorts/*/rounding.key")
    return path.read_bytes()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InMemoryFederation]:
    with InMemoryFederation(spec(dict.fromkeys(SITES, POLICY)), tmp_path_factory.mktemp("s"), light_learner) as running:
        put_tables(running)
        yield running


@pytest.fixture(scope="module")
def alone(run: InMemoryFederation) -> Study:
    """A study of a summary and nothing else, run to its end."""
    study = summary_study(run, "alone")
    with run.agents():
        run_to_end(run, study)
    return study


def test_every_site_opens_the_plain_sum_of_protected_tables_bit_for_bit(run: InMemoryFederation, alone: Study) -> None:
    """c4's eight rows are zeros. The sum of the ring is that of plain integers, so every figure is the same float."""
    layout = alone.summary_layout
    shares = [shared_vector(layout, columns_of(s), Protection(key_of(run, s), 10, 5)) for s in SITES]
    assert not shares[-1].any()
    slow = [sum(entries) for entries in zip(*(share.tolist() for share in shares), strict=True)]
    expected = table_one(np.array(slow), layout, len(SITES))
    for site in SITES:
        summary = present(kept(run, site, "alone"))
        assert (summary.problem, summary.sites) == ("", SITES)
        assert summary.table == expected
    pooled = np.concatenate([np.clip(columns_of(site)[0], 0, 100) for site in SITES[:-1]])
    first = expected.numeric[0]
    assert first.mean == pytest.approx(np.nanmean(pooled), abs=present(first.mean_within) + 0.5)
    assert first.sd == pytest.approx(np.nanstd(pooled, ddof=1), abs=present(first.sd_within) + 0.5)


def test_such_a_study_has_one_round_and_no_model_is_trained(run: InMemoryFederation, alone: Study) -> None:
    for site in SITES:
        (record,) = rounds_of(run, site, "alone")
        assert (record.purpose, record.state, record.took_part) == (Purpose.SUMMARY, RoundEnd.RELEASED, SITES)
        assert record.test_accuracy is None
    state = present(journal(run, "c1", "alone").site_state())
    assert present(state.ended_by).message.cause is EndCause.ALL_ROUNDS_DONE


def test_the_command_shows_it_and_writes_the_scaling_that_data_are_prepared_with(
    run: InMemoryFederation, alone: Study, tmp_path: Path
) -> None:
    def shown(*options: str, site: str = REQUESTER, study: str = "alone") -> str:
        done = CliRunner().invoke(study_app, ["summary", study, "--config", str(run.config(site)), *options])
        return done.stdout if done.exception is None else str(done.exception)

    summary = present(kept(run, REQUESTER, "alone"))
    assert summary.table is not None
    assert Summary.model_validate_json(shown("--json", site="c1")) == summary
    table = " ".join(shown().split())
    assert "not differential privacy" in table
    assert f"{summary.table.numeric[0].mean:.4g}" in table
    lines = [line.split(",") for line in shown("--csv").splitlines()]
    assert lines[1][:4] == ["x0", "", str(summary.table.numeric[0].values), str(summary.table.numeric[0].missing)]
    assert float(lines[1][4]) == summary.table.numeric[0].mean
    path = tmp_path / "scaling.json"
    shown("--scaling", str(path))
    assert parse_scaling(path.read_bytes(), "file") == scaling_of(summary.table, "alone", 1)
    assert "no summary of study 'other'" in shown(study="other")


def test_without_one_site_it_is_refused_and_training_goes_on(run: InMemoryFederation, alone: Study) -> None:
    """The requester asks again, in another study, of three of the four sites whose sum is known: all of them remember.

    The requester's own agent would not even ask; here it has forgotten.
    """
    (memory,) = run.state(REQUESTER).glob("cohorts/*/rounds.json")
    memory.write_text("{}")
    with run.agents(*SITES[:-1]):
        config = run.config(REQUESTER)
        text = config.read_text()
        config.write_text("start_when = 3\n" + text)
        run.stop_agents(REQUESTER)
        run.start(REQUESTER)
        run_to_end(run, summary_study(run, "again", rounds=1), *SITES[:-1])
        config.write_text(text)
    summary = present(kept(run, REQUESTER, "again"))
    assert summary.table is None
    purposes = [(r.purpose, r.state) for r in rounds_of(run, REQUESTER, "again")]
    assert purposes[-1] == (Purpose.UPDATE, RoundEnd.RELEASED)
    assert all(state is RoundEnd.SKIPPED for purpose, state in purposes if purpose is Purpose.SUMMARY)
    declined = [e.text for e in run.events if e.kind is EventKind.DECLINED and e.site == "c1"]
    assert declined
    assert "sites more or fewer" in declined[0]


def test_the_same_sites_are_summed_again_and_a_site_out_of_range_is_left_out(
    run: InMemoryFederation, alone: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """c2 adds 2^63 to a count. Without it the sum would show it by the difference to the one before: there is none."""
    with run.agents():
        run_to_end(run, summary_study(run, "same"))
    same, before = kept(run, "c3", "same"), kept(run, "c3", "alone")
    assert same is not None
    assert before is not None
    assert same.table == before.table
    out_of_range(monkeypatch, "c2", lambda announcement: announcement.purpose is Purpose.SUMMARY)
    with run.agents():
        run_to_end(run, summary_study(run, "wild"))
    assert kept(run, "c3", "wild") is None
    end = present(journal(run, "c3", "wild").site_state())
    assert present(end.ended_by).message.cause is EndCause.NOT_SUMMARISED


def test_a_policy_that_says_no_ends_the_study_before_it_begins_and_is_named(tmp_path: Path) -> None:
    policy = POLICY.model_copy(update={"may_share_second_moments": False})
    with InMemoryFederation(spec({**dict.fromkeys(SITES[:4], POLICY), "c2": policy}), tmp_path, light_learner) as run:
        put_tables(run, SITES[:4])
        with run.agents():
            run_to_end(run, summary_study(run, "refused"), REQUESTER)
        state = present(journal(run, REQUESTER, "refused").site_state())
        end = present(state.ended_by).message
        assert (end.cause, end.clause, end.site) == (EndCause.STUDY_REFUSED, Clause.SECOND_MOMENTS, "c2")
        assert "or its summary" in end.reason
