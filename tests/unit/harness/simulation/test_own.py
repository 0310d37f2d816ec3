"""Data sets and models of others, from a file: what they decide, and what is refused about them."""

from __future__ import annotations

from pathlib import Path

import pytest

import moiety
from harness.api import Case, Study
from host.command_line import EXIT_REFUSED
from host.extensions import Kind, extension, load_again, load_plugins, loaded_plugins
from moiety import Results, simulate
from protocol.errors import ConfigurationError

FILE = """
from dataclasses import replace
import numpy as np
from torch import nn
from harness.datasets.site_data import Federation, cut_site, split_random
from harness.datasets.registry import DataSource


def regions(request):
    random = split_random("regions", request.seed)
    sites = []
    for number, name in enumerate(("north", "south", "east", "west")):
        X = random.standard_normal((60, 3))
        sites.append(cut_site(name, X, (X[:, 0] > 0).astype(np.int64), (0.6, 0.0, 0.4), random))
    return Federation("regions", (3,), ("no", "yes"), tuple(sites))


def youden(outputs, targets):
    chosen = outputs.argmax(axis=1)
    return (chosen[targets == 1] == 1).mean() + (chosen[targets == 0] == 0).mean() - 1


METRICS = {"youden": youden, "none": lambda outputs, targets: 1 / 0, "nan": lambda outputs, targets: np.nan, "no": 3}


def broken(inputs, outputs):
    raise ValueError("no such layer")


def numbers(request, **changed):
    made = regions(request)
    sites = [replace(s, train=with_numbers(s.train), test=with_numbers(s.test)) for s in made.sites]
    return replace(made, sites=tuple(sites), class_names=("weight",), **changed)


def with_numbers(examples):
    return replace(examples, y=examples.X[:, :1])


DATASETS = {
    "classes": numbers,
    "worded": lambda request: numbers(request, task="regression"),
    "unnamed": lambda request: replace(numbers(request, task="regression"), class_names=()),
    "unknown": lambda request: numbers(request, task="regressio"),
    "regions": regions, "source": DataSource(regions), "number": 3, "nothing": lambda request: None,
}
MODELS = {
    "net": lambda inputs, outputs: nn.Sequential(nn.Linear(inputs[0], 5), nn.Tanh(), nn.Linear(5, outputs)),
    "broken": broken,
    "nothing": lambda inputs, outputs: None,
    "buffers": lambda inputs, outputs: nn.Sequential(nn.BatchNorm1d(inputs[0]), nn.Linear(inputs[0], outputs)),
}
"""


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A file under a name that no other test has. This process reads it again for others as long as it runs."""
    path = tmp_path_factory.mktemp("own") / f"own{abs(hash(request.node.nodeid))}.py"
    path.write_text(FILE)
    return path


def run(own: Path, data: str = "regions", model: str = "net", out: Path | None = None, **more: object) -> Results:
    kind = model if model == "linear" else f"{own.stem}:{model}"
    study = Study("own", 2, {"kind": kind, "inputs": [3]}, {"clip_norm": 4.0})
    options = {"policy": {"least_isolation": 0.0}, "requesters": ["east"], **more.pop("options", {})}  # type: ignore[dict-item]
    case = Case(study, f"{own.stem}:{data}", others=options)
    return simulate(case, out, plugins=[own], **more)  # type: ignore[arg-type]


def test_they_decide_the_run_and_stand_in_its_line(own: Path) -> None:
    (line,) = run(own).lines
    assert (line.requester, line.end, len(line.final_model or ())) == ("east", "completed", 3 * 5 + 5 + 5 * 2 + 2)
    assert line.versions[own.stem] == loaded_plugins()[-1].digest
    assert run(own, data="source").lines[0].final_model == line.final_model
    assert len(run(own, model="linear").lines[0].final_model or ()) == 3 * 2 + 2


def test_a_changed_file_is_another_variant(own: Path, tmp_path: Path) -> None:
    before = run(own, out=tmp_path / "out")
    own.write_text(FILE.replace("(60, 3)", "(61, 3)"))
    with pytest.raises(ConfigurationError, match="is not what it was"):
        run(own, out=tmp_path / "out")
    assert run(own).lines[0].data_digest != before.lines[0].data_digest


def test_validation_examples_are_split_off_where_they_are_asked_for(own: Path) -> None:
    options = {"validation_share": 0.25, "tuning_seeds": [5]}
    study = Study("own", 2, {"kind": "linear", "inputs": [3]}, {"clip_norm": 4.0})
    tuned = {"fedavg": {"tune": {"training.server_learning_rate": [0.1, 1.0]}, "keeps_validation": True}}
    case = Case(study, f"{own.stem}:regions", tuned, others={**options, "policy": {"least_isolation": 0.0}})
    (line,) = simulate(case, plugins=[own]).lines
    assert all(value is not None for value in line.validation_accuracy)


def test_a_metric_is_measured_after_every_round(own: Path) -> None:
    names = [f"{own.stem}:{name}" for name in ("youden", "none", "nan")]
    found = run(own, model="linear", options={"metrics": names})
    youden, none, nan = (found.lines[0].test_metrics[name] for name in names)
    sensitivity, specificity = found.lines[0].class_accuracy[-1][::-1]
    assert youden[-1] == pytest.approx((sensitivity or 0) + (specificity or 0) - 1)
    assert none == nan == (None, None)
    assert found.rounds()[f"test_{names[0]}"].tolist() == list(youden)
    for name, said in (("no", "found int, expected a function"), ("gone", "offers no such metric")):
        with pytest.raises(ConfigurationError, match=said):
            run(own, options={"metrics": [f"{own.stem}:{name}"]})


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"data": "number"}, "found int, expected a function"),
        ({"data": "nothing"}, "gave NoneType, expected a Federation"),
        ({"data": "gone"}, "offers no such dataset; its DATASETS has classes, nothing, number, regions, source, u"),
        ({"model": "gone"}, "offers no such model; its MODELS has"),
        ({"model": "nothing"}, "gave NoneType, expected a torch.nn.Module"),
        ({"model": "broken"}, "ValueError: no such layer"),
        ({"protection": "secure"}, "sites run no code of others"),
        ({"requesters": ["nobody"]}, "--requesters: found"),
    ],
)
def test_what_is_wrong_with_them_is_named(own: Path, names: dict, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        run(own, **names)


def test_numbers_are_predicted_and_what_lacks_is_named(own: Path) -> None:
    def regression(data: str) -> Results:
        model = {"kind": "linear", "inputs": [3], "outputs": 1}
        study = Study("own", 1, model, {"clip_norm": 4.0}, task={"kind": "regression"})
        return simulate(Case(study, f"{own.stem}:{data}", others={"policy": {"least_isolation": 0.0}}), plugins=[own])

    assert regression("worded").lines[0].end == "completed"
    for data, said in (
        (
            "classes",
            r"is classes, the study's is regression: return Federation\(..., task=TaskKind.REGRESSION",
        ),
        ("unnamed", "class_names is empty: give a name for every output"),
        ("unknown", r"Federation\(task='regressio'\) is none of classes"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            regression(data)


def test_files_that_are_none_are_refused(tmp_path: Path, own: Path) -> None:
    load_plugins([own])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / own.name).write_text("")
    with pytest.raises(ConfigurationError, match="have one name: rename"):
        load_plugins([tmp_path / "other" / own.name])
    for name, text, said in (("a b.py", "", "letters, digits"), ("bad.py", "1 +", "does not load: SyntaxError")):
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigurationError, match=said):
            load_plugins([tmp_path / name])


def test_another_process_refuses_a_file_that_was_changed(own: Path) -> None:
    load_plugins([own])
    loaded = loaded_plugins()[-1:]
    assert loaded[0].path == own
    load_again(loaded)
    own.write_text("MODELS = {}")
    with pytest.raises(ConfigurationError, match="was changed while the simulation ran"):
        load_again(loaded)
    with pytest.raises(ConfigurationError, match="MODELS has nothing"):
        extension(Kind.MODEL, f"{own.stem}:net")


def test_the_command_takes_a_file(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "case.toml").write_text(
        f'name = "own"\nrounds = 2\n[case]\ndata = "{own.stem}:regions"\n[model]\nkind = "{own.stem}:net"\n'
        'inputs = [3]\n[parameters]\nclip_norm = 4.0\n[[variant]]\nname = "local"\nrule = { name = "local" }\n'
    )
    arguments = ["simulate", str(tmp_path / "case.toml"), "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as refused:
        moiety.main(arguments)
    assert refused.value.code == EXIT_REFUSED
    assert f"--plugin {own.stem}.py" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(SystemExit) as ended:
        moiety.main([*arguments, "--plugin", str(own)])
    assert not ended.value.code
