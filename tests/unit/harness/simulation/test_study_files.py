"""One file may be many studies; whatever a study is called resolves, and what there is not is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.papers.recipes import case_of, recipes
from harness.simulate.study_files import STUDIES, read_study_file, study_names
from protocol.errors import ConfigurationError

MATRIX = """
name = "try-{kind}-{sites}"
[matrix]
names = "try_{kind}_{sites}"
[matrix.axes]
kind = [{ kind = "a", hidden = 3 }, { kind = "b", hidden = 4 }]
size = [{ sites = 2, rate = 0.5 }, { sites = 4, rate = 0.25 }]
[case]
sites = "{sites}"
data = "data {kind}{sites}"
[model]
hidden = ["{hidden}", 8]
[[variant]]
rule = { step = "{rate}" }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "try.toml").write_text(MATRIX)
    (tmp_path / "alone.toml").write_text('name = "alone"\n[model]\nkind = "linear"\n')
    (tmp_path / "roster.toml").write_text('federation = "clinics"\n')
    (tmp_path / "torn.toml").write_text("name = ")
    return tmp_path


def test_a_study_of_a_matrix_is_what_a_file_of_its_own_would_hold(folder: Path) -> None:
    found = read_study_file(folder / "try_b_4.toml")
    assert found.source == f"{folder / 'try.toml'} (try_b_4)"
    assert found.tables == {
        "name": "try-b-4",
        "case": {"sites": 4, "data": "data b4"},
        "model": {"hidden": [4, 8]},
        "variant": [{"rule": {"step": 0.25}}],
    }
    assert type(found.tables["case"]["sites"]) is int
    assert found.is_case
    assert not found.is_personal_case


def test_every_row_meets_every_row_of_the_other_axes(folder: Path) -> None:
    """What has no model is no study, and a file that cannot be read is another one than was asked for."""
    assert study_names(folder) == ("alone", "try_a_2", "try_a_4", "try_b_2", "try_b_4")


def test_a_file_goes_before_a_study_of_that_name(folder: Path) -> None:
    (folder / "try_a_2.toml").write_text('name = "mine"\n')
    assert read_study_file(folder / "try_a_2.toml").tables == {"name": "mine"}


@pytest.mark.parametrize("name", ["try_c_2.toml", "try_a_2", "try_a_2.txt"])
def test_a_study_that_there_is_not_is_refused_with_those_that_there_are(folder: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} cannot be read.* there are: alone, try_a_2, .*, try_b_4$"):
        read_study_file(folder / name)
    (folder / "empty").mkdir()
    with pytest.raises(ConfigurationError, match=r"none.toml cannot be read.* there are: none$"):
        read_study_file(folder / "empty" / "none.toml")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_study_file(folder / "nowhere" / "none.toml")


def test_a_matrix_as_such_is_no_study(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"try.toml holds many studies: name one of try_a_2, .*, try_b_4$"):
        read_study_file(folder / "try.toml")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"{hidden}"', '"{hiden}"', r"no axis has 'hiden', found in '\{hiden\}'; they have kind, hidden, sites, rate"),
        ("try_{kind}_{sites}", "try_{kind}_{size}", "no axis has 'size'"),
        ("try_{kind}_{sites}", "try_{kind}", "makes 'try_a' twice"),
        ("try_{kind}_{sites}", "../{kind}", "'names'"),
        ("sites = 4, rate", "sites = 4, kind", "two axes have a value for 'kind'"),
        ("sites = 4, rate = 0.25", "sites = [4]", r"\[matrix\]: key 'axes.size.1"),
        ('[{ kind = "a", hidden = 3 }, { kind = "b", hidden = 4 }]', "[]", r"\[matrix\]: key 'axes.kind'"),
    ],
)
def test_what_is_wrong_in_a_matrix_is_named(folder: Path, before: str, after: str, message: str) -> None:
    assert before in MATRIX
    (folder / "try.toml").write_text(MATRIX.replace(before, after))
    with pytest.raises(ConfigurationError, match=f"try.toml: .*{message}"):
        read_study_file(folder / "try_b_4.toml")


def test_a_bare_name_is_a_study_that_comes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the command is given."""
    monkeypatch.chdir(tmp_path)
    assert read_study_file(Path("mnist_b_10")).tables["name"] == "mnist-b-10"
    assert read_study_file(Path("heart_disease")).source == str(STUDIES / "heart_disease.toml")
    with pytest.raises(ConfigurationError, match=r"^mnist_b_11 cannot be read.* breast_cancer, .*mnist_g_50"):
        read_study_file(Path("mnist_b_11"))


def test_every_case_of_a_page_is_there() -> None:
    asked = [one for page in recipes().values() for kind in ("simulate", "on_gpu") for one in page.get(kind, ())]
    names = {name for one in asked for name in one["cases"]}
    assert len(names) > 28
    assert names <= set(study_names())
    assert {case_of(name).source for name in names if name.startswith("mnist_")} == {
        f"{STUDIES / 'mnist.toml'} ({name})" for name in names if name.startswith("mnist_")
    }
