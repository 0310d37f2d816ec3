"""Runs in parts, by name and by code: shards, requesters, folders that are joined, and what is never mixed."""

from __future__ import annotations

from pathlib import Path

import pytest

import moiety
from harness.simulate.case import Case, parse_case
from harness.simulate.case_run import CaseOptions, run_case
from harness.simulate.command import merge_results
from harness.simulate.run_line import RunLine
from harness.simulate.store import RESULTS, Results, code_digest, digest_of_code
from harness.simulate.study_files import Shard, parse_shard
from protocol.errors import ConfigurationError

CASE = """
name = "try"
rounds = 2
[case]
data = "breast_cancer"
seeds = [0, 1, 2]
tuning_seeds = [9]
[model]
kind = "linear"
inputs = [30]
[parameters]
clip_norm = 4.0
[[variant]]
name = "local"
rule = { name = "local" }
[[variant]]
name = "fedavg"
rule = { name = "fedavg" }
[variant.tune]
"training.server_learning_rate" = [0.1, 1.0]
"""


def case(text: str = CASE) -> Case:
    return parse_case(text, "case.toml")


def without_time(lines: tuple[RunLine, ...]) -> set[str]:
    return {line.model_copy(update={"seconds": 0.0}).model_dump_json() for line in lines}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    folder = tmp_path_factory.mktemp("shards")
    found = tuple(folder / str(part) for part in (1, 2, 3, 4))
    for part, out in enumerate(found, 1):
        run_case(case(), CaseOptions(out, shard=Shard(part, 4)))
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
