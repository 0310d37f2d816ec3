"""The demo: what it is told before it starts, what it shows and writes, and the data folders for a first try."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Literal
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

import moiety
from client_agent.cli.tables import console as console_for
from client_agent.learning.data import load_folder
from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.demo.example_data import main
from harness.demo.report import LiveRun, plots_of, print_accuracies, print_run, print_split, report, write_report
from harness.demo.results import Accuracy, summarise, write_summary
from harness.demo.run import DemoOptions, data_sets
from harness.engine.history import RoundKind
from harness.engine.parties import SiteEntry, make_parties
from harness.engine.protected_sum import correlations_from
from harness.versions import versions
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName, StudyProtection, require_roster
from tests.unit.harness.demo_results import ROUNDS, TRAFFIC, demo_result


def test_two_studies_ten_rounds_first(tmp_path: Path) -> None:
    first, second = data_sets(DemoOptions(out=tmp_path))
    assert (first.key, second.key) == ("breast_cancer", "digits")
    assert first.settings.rounds == 10
    assert second.settings.rounds == 15


def test_rounds_change_the_first_study_only(tmp_path: Path) -> None:
    usual = data_sets(DemoOptions(out=tmp_path))
    chosen = data_sets(DemoOptions(out=tmp_path, rounds=7))
    assert [one.settings.rounds for one in chosen] == [7, usual[1].settings.rounds]
    quick = data_sets(DemoOptions(out=tmp_path, quick=True))
    assert {one.settings.rounds for one in quick} == {3}


def test_heart_disease_is_one_study_of_four_hospitals(tmp_path: Path) -> None:
    folder = tmp_path / "heart_disease"
    (only,) = data_sets(DemoOptions(out=tmp_path, data=folder))
    with pytest.raises(ConfigurationError, match=r"processed.cleveland.data is missing: put"):
        only.load(0)
    with pytest.raises(ConfigurationError, match="not a Heart Disease folder"):
        data_sets(DemoOptions(out=tmp_path, data=tmp_path / "elsewhere"))


def test_command_line_refuses_unknown_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        moiety.main(["demo", "--data", str(tmp_path / "x"), "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error (configuration): --data")


def test_versions_name_what_matters() -> None:
    named = versions()
    assert {"python", "protocol", "torch", "numba", "cryptography"} <= set(named)
    assert "not installed" not in named.values()


def test_parties_have_a_valid_roster_and_their_own_keys() -> None:
    parties = make_parties("unit", "b", [SiteEntry("a", 3), SiteEntry("b", 4)], bytes(32))
    roster = require_roster(parties.roster)
    assert [(site.name, site.samples) for site in roster.sites] == [("a", 3), ("b", 4)]
    assert parties.keys_of("a").party(samples=3) == roster.party("a")
    assert "seed" not in repr(parties)
    assert "keys" not in repr(parties)
    with pytest.raises(ConfigurationError, match="no party 'c'; the federation has operator-a, operator-b, a, b"):
        parties.keys_of("c")


@pytest.mark.parametrize("source", ["ot", "dealer"])
def test_correlations_hold_and_are_never_the_same_twice(source: Literal["ot", "dealer"]) -> None:
    draw = correlations_from(source, bytes(32))
    batches = [draw([(3, 1), (2,)], f"round {number}") for number in (1, 2)]
    for halves_a, halves_b in batches:
        for a, b in zip(halves_a, halves_b, strict=True):
            start = 0
            for place, length in enumerate(a.lengths):
                segment = slice(start, start + length)
                exact = sum(int(x) * int(y) for x, y in zip(a.vector[segment], b.vector[segment], strict=True))
                assert (int(a.products[place]) + int(b.products[place]) - exact) % 2**64 == 0
                start += length
    assert batches[0][0][0].vector.tobytes() != batches[1][0][0].vector.tobytes()


def test_accuracy_is_mean_and_standard_error() -> None:
    values = (0.9, 0.8, 0.95)
    accuracy = Accuracy.of(values)
    assert accuracy.mean == mean(values)
    assert accuracy.standard_error == stdev(values) / math.sqrt(3)
    assert Accuracy.of((0.9,)).standard_error is None


def test_summary_says_what_was_measured(tmp_path: Path) -> None:
    result = demo_result()
    write_summary(result, tmp_path / "summary.json")
    study = json.loads((tmp_path / "summary.json").read_text())["studies"]["breast_cancer"]
    erosion = result.studies[0].of(RuleName.WEIGHT_EROSION)
    history = erosion.federated.history
    assert study["seeds"] == [0, 1]
    assert study["rule_accuracy"]["weight_erosion"]["values"] == list(erosion.accuracies)
    assert study["alpha"]["screening-centre"] == [record.alphas[2].value for record in history.rounds]
    assert study["distance"]["oncology-centre"] == [record.distances[3].value for record in history.rounds]
    assert study["bytes_up_per_parameter"] == 62_000 / (10 * 62)
    assert study["bytes_down_per_parameter"] == 124_000 / (10 * 62)
    assert study["bytes_between_servers_per_contributor_round"] == 50_000
    assert study["seconds_per_round"] == 0.5
    assert study["process_ids"] == {"operator-a": 101, "operator-b": 102}
    assert study["tls_version"] == "TLSv1.3"
    assert study["correlation_source"] == "ot"
    differences = [np.abs(r.federated.history.final_model - r.plain.final_model).max() for r in result.studies[0].rules]
    assert study["max_abs_difference_to_plain"] == float(max(differences))
    assert study["rules"]["local"]["released_rounds"] == 0
    assert study["rules"]["weight_erosion"]["weights_equal_plain"] is True


def test_largest_relative_distance_error() -> None:
    erosion = demo_result().studies[0].of(RuleName.WEIGHT_EROSION)
    rounds = list(erosion.plain.rounds)
    first = rounds[0]
    doubled = tuple(one.model_copy(update={"value": one.value * 2}) for one in first.distances)
    rounds[0] = first.model_copy(update={"distances": doubled})
    changed = replace(erosion, plain=replace(erosion.plain, rounds=tuple(rounds)))
    # All weights of the first round are 1. Fixed point moves each of 62 coordinates of update and query by less than
    # 2^-19, so a distance by less than 2 sqrt(62) 2^-19, here over twice the plain one.
    smallest = min(distance.value for distance in first.distances)
    assert changed.distance_error == pytest.approx(0.5, abs=math.sqrt(62) * 2.0**-19 / smallest)
    assert demo_result().studies[0].of(RuleName.FEDAVG).distance_error is None


def test_no_round_with_contributors_costs_nothing_per_round() -> None:
    empty = replace(TRAFFIC, contributor_rounds=0)
    assert math.isnan(empty.up_per_parameter)
    assert math.isnan(empty.between_servers_per_contributor_round)


def test_report_is_one_file_and_escapes_names(tmp_path: Path) -> None:
    write_report(demo_result(), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page == report(demo_result())
    assert "tumours &amp; &lt;hospitals&gt;" in page
    assert "<hospitals>" not in page
    assert page.count("<svg") == 5
    assert "http-equiv" not in page
    assert "reproducible from the seed" in page
    assert "0.250 s" in page


def test_plots_are_svg_with_a_line_a_site() -> None:
    for plot, lines in zip(plots_of(demo_result().studies[0]), (3, 3, 4, 4, 5), strict=True):
        root = ElementTree.fromstring(plot.svg)
        drawn = [g for g in root.iter("{http://www.w3.org/2000/svg}g") if g.get("id", "").startswith("legend")]
        assert len(drawn) == 1
        assert len(list(drawn[0].iter("{http://www.w3.org/2000/svg}text"))) == lines


def test_without_a_terminal_every_round_is_one_line() -> None:
    out = io.StringIO()
    records = demo_result().studies[0].rules[0].federated.records
    with LiveRun(Console(file=out, width=60), "title", ROUNDS) as live:
        live.show(())
        live.show(records[:1])
        live.show(records[:1])
        live.show(records)
    lines = out.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == [f"title: round {n}/{ROUNDS} released" for n in (1, 2, 3)]
    assert all("1,234 bytes, 0.50 s" in line and "county-hospital 0." in line for line in lines)
    assert all(", isolation 0.87" in line for line in lines)


def test_on_a_terminal_one_line_updates() -> None:
    out = io.StringIO()
    records = demo_result().studies[0].rules[0].federated.records
    with LiveRun(Console(file=out, force_terminal=True, width=300), "title", ROUNDS) as live:
        live.show(records[:2])
    shown = out.getvalue()
    assert f"title: round 2/{ROUNDS} released" in shown
    assert "county-hospital 0." in shown


def test_tables_are_printed() -> None:
    out = io.StringIO()
    console = Console(file=out, width=120)
    print_split(console, breast_cancer_five_hospitals(0), "because")
    print_accuracies(console, demo_result().studies[0])
    print_run(console, demo_result().studies[0].rules[0].plain)
    shown = out.getvalue()
    for text in ("screening-centre", "median radius", "because", "Weight Erosion", "FedAvg", "over 2 seeds", "seed 0:"):
        assert text in shown


def test_a_console_without_terminal_is_wide_enough() -> None:
    assert console_for(stderr=True).width >= 100


def test_kinds_of_rounds_in_the_summary() -> None:
    local = demo_result().studies[0].of(RuleName.LOCAL)
    assert {record.kind for record in local.federated.history.rounds} == {RoundKind.ALONE}
    assert summarise(demo_result())["studies"]["breast_cancer"]["rules"]["local"]["end"] == "completed"


def test_a_report_under_ckks_says_what_is_encrypted_and_shows_no_distances() -> None:
    result = demo_result()
    study = result.studies[0]
    fedavg = study.of(RuleName.FEDAVG)
    under_ckks = fedavg.study.model_copy(update={"protection": StudyProtection.CKKS})
    rules = (replace(fedavg, study=under_ckks), study.of(RuleName.LOCAL))
    encrypted = replace(result, studies=(replace(study, rules=rules),))
    text = report(encrypted)
    assert "Server A held ciphertexts, no server a key." in text
    assert "under CKKS, N = 2048, q of 40 bits, scale 2^36, summed at server A" in text
    assert "with the key of any one site" in text
    assert "Weight Erosion" not in text
    assert text.count("<svg") == 3
    distances = summarise(encrypted)["studies"][study.key]["distance"]
    assert {value for values in distances.values() for value in values} == {None}
    assert "Server A held" not in report(result)


def test_every_folder_is_named_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [tmp_path / "h0", tmp_path / "h1"]
    assert main([str(folder) for folder in folders]) == 0
    said, federation = capsys.readouterr().out, breast_cancer_five_hospitals(0)
    for folder, site in zip(folders, federation.sites, strict=False):
        data = load_folder(folder, (30,), 2)
        assert data.names == federation.names
        assert f"{folder}: {len(site.train)} training and {len(site.test)} test examples" in said


def test_there_are_five_hospitals(tmp_path: Path) -> None:
    assert main([]) == 2
    assert main([str(tmp_path / str(n)) for n in range(6)]) == 2
