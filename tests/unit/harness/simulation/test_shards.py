"""Runs in parts, and cases that are killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

import moiety
from harness.federation.processes import Forked
from harness.simulate.case import Case, parse_case, read_case
from harness.simulate.case_run import CaseOptions, run_case
from harness.simulate.command import merge_results
from harness.simulate.run_line import RunLine
from harness.simulate.run_one import Protection
from harness.simulate.store import RESULTS, Results, code_digest, digest_of_code
from harness.simulate.study_files import parse_shard
from host.extensions import load_plugins
from protocol.errors import ConfigurationError
from tests.kit.cases import case_text, variant

# --- shards -----------------------------------------------------------------------------------------------------------

TUNE = '[variant.tune]\n"training.server_learning_rate" = [0.1, 1.0]\n'
CASE = case_text(
    variant("local"), variant("fedavg", TUNE), rounds=2, case="seeds = [0, 1, 2]\ntuning_seeds = [9]", training=""
)


def case(text: str = CASE) -> Case:
    return parse_case(text, "case.toml")


def without_time(lines: tuple[RunLine, ...]) -> set[str]:
    return {line.model_copy(update={"seconds": 0.0}).model_dump_json() for line in lines}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    folder = tmp_path_factory.mktemp("shards")
    found = tuple(folder / str(part) for part in (1, 2, 3, 4))
    for part, out in enumerate(found, 1):
        run_case(case(), CaseOptions(out, shard=(part, 4)))
    return found


def test_shards_joined_are_the_whole_case(shards: tuple[Path, ...], tmp_path: Path) -> None:
    whole = run_case(case(), CaseOptions(tmp_path / "whole"))
    merged = merge_results(shards, tmp_path / "merged")
    assert [len(Results(one).lines()) for one in shards] == [2, 2, 1, 1]
    assert without_time(merged) == without_time(whole)
    again = run_case(case(), CaseOptions(tmp_path / "merged"))  # goes on there: nothing is left to do
    assert without_time(again) == without_time(whole)


def test_the_command_joins_and_says_what_is_wrong(
    shards: tuple[Path, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def merge(*folders: Path) -> tuple[object, str]:
        with pytest.raises(SystemExit) as ended:
            moiety.main(["simulate", "merge", *map(str, folders)])
        printed = capsys.readouterr()
        return ended.value.code, " ".join((printed.out + printed.err).split())

    assert merge(tmp_path / "m", shards[0], shards[1])[0] in (0, None)
    assert (tmp_path / "m" / "summary.json").exists()
    assert "holds runs already" in merge(tmp_path / "m", shards[2])[1]
    assert "leave one of them out" in merge(tmp_path / "n", shards[0], shards[0])[1]
    assert "holds no finished run" in merge(tmp_path / "n", shards[0], tmp_path / "nothing")[1]
    assert not (tmp_path / "n").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"case": "other"}, "two different cases"),
        ({"code_digest": "0" * 64}, "two different codes"),
        ({"protection": "secure"}, "two different protections"),
        ({"study_digest": "0" * 64}, "two different studys for"),
        ({"settings": {"training.server_learning_rate": 7.0}}, "two different rule's settings"),
    ],
)
def test_what_is_not_alike_is_not_joined(shards: tuple[Path, ...], tmp_path: Path, change: dict, said: str) -> None:
    (line,) = (line for line in Results(shards[0]).lines() if line.seed == 0)
    other = Results(tmp_path / "other")
    other.folder.mkdir()
    other.append(line.model_copy(update={"seed": 77, **change}))
    with pytest.raises(ConfigurationError, match=said):
        merge_results((shards[0], other.folder), tmp_path / "merged")


@pytest.mark.parametrize("text", ["", "0/2", "3/2", "1", "a/b", "1/2/3", "-1/2"])
def test_a_wrong_shard(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--shard"):
        parse_shard(text)


def test_a_shard_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="fewer than 8 runs"):
        run_case(case(), CaseOptions(tmp_path, only=("local",), shard=parse_shard("8/9")))


@pytest.mark.parametrize("made_by", ["", "1" * 64])
def test_a_folder_of_other_code_is_refused(tmp_path: Path, made_by: str) -> None:
    (line,) = run_case(case(), CaseOptions(tmp_path, seeds=(0,), only=("local",)))
    assert line.code_digest == code_digest()
    (tmp_path / RESULTS).unlink()
    Results(tmp_path).append(line.model_copy(update={"code_digest": made_by}))
    with pytest.raises(ConfigurationError, match=r"runs of two versions are not mixed.*another --out"):
        run_case(case(), CaseOptions(tmp_path, seeds=(1,), only=("local",)))


def test_the_digest_is_over_names_and_content(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.py").write_text("x = 1\n")
    first = digest_of_code(tmp_path, ("a",))
    (tmp_path / "a" / "note.txt").write_text("not code")
    assert digest_of_code(tmp_path, ("a",)) == first
    (tmp_path / "a" / "one.py").write_text("x = 2\n")
    assert digest_of_code(tmp_path, ("a",)) != first
    (tmp_path / "a" / "one.py").rename(tmp_path / "a" / "two.py")
    (tmp_path / "a" / "two.py").write_text("x = 1\n")
    assert digest_of_code(tmp_path, ("a",)) != first


def test_a_requester_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--requesters: found.*nobody.*the sites are"):
        run_case(case(), CaseOptions(tmp_path, requesters=("nobody",)))


# --- resume -----------------------------------------------------------------------------------------------------------


def case_file(folder: Path, rounds: int = 3, penalty: float = 0.02) -> Path:
    path = folder / "case.toml"
    text = case_text(
        variant("weight_erosion", distance_penalty=penalty),
        variant("local"),
        rounds=rounds,
        case="policy = { largest_share = 1.0 }",
        model='kind = "mlp"\nhidden = [8]',
        training='update = "local_sgd"\nbatch_size = 8',
        clip_norm=16.0,
    )
    path.write_text(text)
    return path


def lines_of(out: Path) -> list[dict[str, object]]:
    """Every line but for the seconds, by variant and seed."""
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    return sorted(lines, key=lambda line: (line["variant"], line["seed"]))


class Stopped(Exception):
    pass


@pytest.mark.parametrize("protection", [Protection.PLAIN, Protection.SECURE])
def test_a_run_stopped_after_any_round_ends_as_an_undisturbed_one(tmp_path: Path, protection: Protection) -> None:
    case = read_case(case_file(tmp_path))
    run_case(case, CaseOptions(tmp_path / "whole", protection=protection, correlation_source="dealer"))
    options = CaseOptions(
        tmp_path / "stopped", protection=protection, correlation_source="dealer", checkpoint_every_s=0
    )
    stops = 0
    while stops < 20:
        told: list[object] = []

        def stop_at_second(progress: object, told: list[object] = told) -> None:
            told.append(progress)
            if len(told) == 2:
                raise Stopped

        try:
            run_case(case, options, stop_at_second)
            break
        except Stopped:
            stops += 1
    # of each of two runs: after rounds 1, 2 and 3, and once its line was written
    assert stops == 2 * 4
    assert lines_of(tmp_path / "stopped") == lines_of(tmp_path / "whole")
    assert list((tmp_path / "stopped" / "partial").iterdir()) == []


def _standing_case(file: str, out: str) -> None:
    """Once six rounds are done it goes no further."""
    options = CaseOptions(Path(out), checkpoint_every_s=0.0)
    run_case(read_case(Path(file)), options, lambda progress: time.sleep(600 * (progress.rounds_done == 6)))


@pytest.mark.slow
def test_a_killed_process_leaves_a_case_that_goes_on(tmp_path: Path) -> None:
    file = case_file(tmp_path, rounds=12)
    out = tmp_path / "killed"
    process = Forked(_standing_case, (str(file), str(out)), tmp_path / "log", os.environ)
    partial = out / "partial" / "weight_erosion-city-hospital-0.json"
    until = time.monotonic() + 120
    while time.monotonic() < until and not (partial.is_file() and len(json.loads(partial.read_text())["records"]) > 3):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(json.loads(partial.read_text())["records"])
    assert 3 < done < 12
    rounds: list[int] = []
    case = read_case(file)
    run_case(case, CaseOptions(out, only=("weight_erosion",)), lambda progress: rounds.append(progress.rounds_done))
    assert rounds[0] >= done
    run_case(case, CaseOptions(out))
    run_case(case, CaseOptions(tmp_path / "whole"))
    assert lines_of(out) == lines_of(tmp_path / "whole")


def test_a_changed_case_does_not_go_on_in_the_same_folder(tmp_path: Path) -> None:
    options = CaseOptions(tmp_path / "out")
    run_case(read_case(case_file(tmp_path)), options)
    before = (tmp_path / "out" / "results.jsonl").read_bytes()
    changed = read_case(case_file(tmp_path, penalty=0.03))
    with pytest.raises(ConfigurationError, match=r"variant 'weight_erosion' is not what it was .* give another --out"):
        run_case(changed, options)
    with pytest.raises(ConfigurationError, match="--protection plain, now it is secure"):
        run_case(changed, CaseOptions(tmp_path / "out", protection=Protection.SECURE))
    assert (tmp_path / "out" / "results.jsonl").read_bytes() == before


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    case = read_case(case_file(tmp_path))

    def stop(progress: object) -> None:
        if progress.rounds_done == 2:  # type: ignore[attr-defined]
            raise Stopped

    with pytest.raises(Stopped):
        run_case(case, CaseOptions(tmp_path / "out", checkpoint_every_s=0), stop)
    (partial,) = (tmp_path / "out" / "partial").glob("*.json")
    content = json.loads(partial.read_text())
    partial.write_text(json.dumps({**content, "identity": "another"}))
    with pytest.raises(ConfigurationError, match="another study or of other data"):
        run_case(case, CaseOptions(tmp_path / "out"))
    vectors = partial.with_name(content["vectors"])
    whole = vectors.read_bytes()
    vectors.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    partial.write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match="is not the file that was written with it"):
        run_case(case, CaseOptions(tmp_path / "out"))
    partial.write_text("{")
    with pytest.raises(ConfigurationError, match=r"cannot be read: (?s:.*); delete it"):
        run_case(case, CaseOptions(tmp_path / "out"))


def test_a_line_that_a_crash_cut_off_is_done_again(tmp_path: Path) -> None:
    case = read_case(case_file(tmp_path))
    options = CaseOptions(tmp_path / "out")
    run_case(case, options)
    whole = lines_of(tmp_path / "out")
    results = tmp_path / "out" / "results.jsonl"
    results.write_bytes(results.read_bytes()[:-100])
    run_case(case, options)
    assert lines_of(tmp_path / "out") == whole


def test_two_simulations_do_not_write_into_one_folder(tmp_path: Path) -> None:
    case = read_case(case_file(tmp_path))
    options = CaseOptions(tmp_path / "out")

    def begin_another(progress: object) -> None:
        run_case(case, options)

    with pytest.raises(ConfigurationError, match="another simulation writes there"):
        run_case(case, options, begin_another)


REFUSING = """
import time
from pathlib import Path

from harness.datasets.bundled import breast_cancer_five_hospitals
from protocol.errors import ConfigurationError


def hospitals(request):
    if request.seed:
        until = time.monotonic() + 100
        while time.monotonic() < until and not list(Path(__file__).parent.glob("out/partial/*.json")):
            time.sleep(0.01)
        raise ConfigurationError("no data of that seed")
    return breast_cancer_five_hospitals(0)


DATASETS = {"hospitals": hospitals}
"""
"""The second seed's data are refused once the first seed's run has kept a round."""


@pytest.mark.slow
def test_a_run_that_cannot_begin_ends_the_others_after_their_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host.extensions._files", {})
    (tmp_path / "refusing.py").write_text(REFUSING)
    load_plugins([tmp_path / "refusing.py"])
    text = case_text(variant("local"), rounds=20_000, data="refusing:hospitals", case="seeds = [0, 1]")
    with pytest.raises(ConfigurationError, match="no data of that seed"):
        run_case(case(text), CaseOptions(tmp_path / "out", jobs=2, checkpoint_every_s=0))
    for partial in (tmp_path / "out" / "partial").glob("*.json"):
        assert len(json.loads(partial.read_text())["records"]) < 20_000
    assert not (tmp_path / "out" / "results.jsonl").exists()
