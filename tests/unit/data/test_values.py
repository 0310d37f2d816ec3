"""Texts become numbers, classes, dates and missing values as a site's file says; ambiguous ones are refused."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from client_agent.data.draft import draft
from client_agent.data.findings import Findings, Problem
from client_agent.data.site_table import PLAIN, SiteColumn, SiteTable, read_site_table
from client_agent.data.values import Values
from protocol.errors import ConfigurationError
from protocol.messages.control import TableSchema
from tests.unit.data.made import (
    AGE,
    CHOL,
    ILL,
    SEEN,
    WHO,
    cleveland_schema,
    cleveland_text,
    read,
    report,
    schema,
    written,
)

X = {"name": "x", "type": "number"}
WHOLE = {"name": "x", "type": "integer"}
KIND = {"name": "x", "type": "category", "categories": ["1", "2"], "missing": "category"}
COMMA = SiteTable(decimal=",")
COMMAS = SiteTable(thousands=",")
POINTS = SiteTable(decimal=",", thousands=".")
NARROW = "\u202f"


def values(column: dict[str, Any], texts: Sequence[str | None] | pa.Array, site: SiteTable = PLAIN) -> Values:
    """The values of a column "x" that is read without a finding."""
    found, findings = looked_at(column, texts, site)
    assert [finding.text for finding in findings if finding.problem.stops] == []
    return found


def looked_at(
    column: dict[str, Any], texts: Sequence[str | None] | pa.Array, site: SiteTable = PLAIN
) -> tuple[Values, Findings]:
    other = {"name": "y", "type": "boolean", "role": "target"}
    of_x = schema({"missing": "drop_row" if column.get("role") else "median", **column}, other, AGE)
    table = pa.table({"x": texts, "y": ["true"] * len(texts), "age": ["50"] * len(texts)})
    rows, findings = read(of_x, table, site)
    return rows.columns[0], findings


@pytest.mark.parametrize(
    ("site", "texts", "numbers"),
    [
        (PLAIN, ["1.200", "+5", "\u22125", ".5", "5.", "1.5e3", "-0.25"], [1.2, 5, -5, 0.5, 5, 1500, -0.25]),
        (
            COMMA,
            ["1,25", "0,125", "1200", "+1,5", "\u22121,5", "1,5e3", ",5"],
            [1.25, 0.125, 1200, 1.5, -1.5, 1500, 0.5],
        ),
        (COMMAS, ["1,200", "850", "1,234,567.5", "1,20,000", "1.25"], [1200, 850, 1234567.5, 120000, 1.25]),
        (POINTS, ["1.200", "1,200", "1.200,5", "12.345.678", "1200,5"], [1200, 1.2, 1200.5, 12345678, 1200.5]),
        (SiteTable(thousands="'"), ["1'200", "1\u2019200.5", "850"], [1200, 1200.5, 850]),
        (SiteTable(thousands="\u2019"), ["1'200", "1\u2019200"], [1200, 1200]),
        (
            SiteTable(thousands=" "),
            ["1 200", "1\u00a0200", f"1{NARROW}200", "-1\u2009234\u2009567"],
            [1200] * 3 + [-1234567],
        ),
        (SiteTable(thousands=NARROW, decimal=","), ["1 200,5"], [1200.5]),
        (SiteTable(thousands="", decimal=","), ["1,200", "1,25"], [1.2, 1.25]),
        (SiteTable(decimal=",", columns={"x": SiteColumn(decimal=".", thousands=",")}), ["1,200.5"], [1200.5]),
    ],
)
def test_numbers_as_a_site_writes_them(site: SiteTable, texts: list[str], numbers: list[float]) -> None:
    assert values(X, texts, site).tolist() == numbers


_WITH_MORE = ("45%", "45 mg", "5-10", "\u20135", "<5 mg")


@pytest.mark.parametrize(
    ("site", "text", "problem", "said"),
    [
        (PLAIN, "1,200", Problem.THOUSANDS, "thousands = ',' (and decimal = '.')"),
        (COMMA, "1,200", Problem.THOUSANDS, "or thousands = '' where the comma is the decimal sign"),
        (COMMA, "-1,200", Problem.THOUSANDS, "may part thousands"),
        (COMMA, "\u22121,200", Problem.THOUSANDS, "may part thousands"),
        (PLAIN, "1,25", Problem.DECIMAL_COMMA, "say decimal = ','"),
        (PLAIN, "0,125", Problem.DECIMAL_COMMA, "say decimal = ','"),
        (SiteTable(thousands=""), "1,200", Problem.DECIMAL_COMMA, "say decimal = ','"),
        (COMMA, "1.200", Problem.NOT_A_NUMBER, "say thousands = '.'"),
        (COMMA, "1.5", Problem.NOT_A_NUMBER, "hold a point"),
        (COMMAS, "1,25", Problem.NOT_A_NUMBER, ""),
        (COMMAS, "0,125", Problem.THOUSANDS, "which sign is decimal"),
        (POINTS, "1.5", Problem.NOT_A_NUMBER, ""),
        (PLAIN, "1 200", Problem.THOUSANDS, "what parts them"),
        (PLAIN, f"1{NARROW}200", Problem.THOUSANDS, "what parts them"),
        (PLAIN, "1'200", Problem.THOUSANDS, "what parts them"),
        (PLAIN, "1,20,000", Problem.THOUSANDS, "what parts them"),
        (PLAIN, "1.200,50", Problem.THOUSANDS, "what parts them"),
        (COMMA, "1.200,50", Problem.THOUSANDS, "what parts them"),
        (PLAIN, "1,234,567", Problem.THOUSANDS, "what parts them"),
        *((PLAIN, text, Problem.NOT_A_NUMBER, "take units, ranges and notes out") for text in _WITH_MORE),
        (PLAIN, "-", Problem.NOT_A_NUMBER, "say missing_marks"),
        (PLAIN, "1,0000", Problem.DECIMAL_COMMA, ""),
        (COMMAS, "1,0000", Problem.NOT_A_NUMBER, ""),
        (PLAIN, "-Infinity", Problem.NOT_FINITE, ""),
        (COMMA, "NaN", Problem.NOT_FINITE, ""),
        (PLAIN, "<5", Problem.BEYOND_LIMIT, "'limit', 'half' or 'missing'"),
        (PLAIN, ">100", Problem.BEYOND_LIMIT, "detection_limit in the schema"),
        (PLAIN, "<1,200", Problem.THOUSANDS, ""),
    ],
)
def test_what_could_mean_two_things_is_refused(site: SiteTable, text: str, problem: Problem, said: str) -> None:
    found, findings = looked_at(X, ["7", text], site)
    (finding,) = findings
    assert (finding.problem, finding.first) == (problem, [2])
    assert said in finding.detail
    np.testing.assert_array_equal(found, [7, np.nan])


def test_a_comma_of_two_meanings_is_no_reason_to_advise_a_decimal_comma(tmp_path: Path) -> None:
    """The advice made 1,200 platelets 1.2; a column with both kinds is not read by either sign."""
    path = written(tmp_path, 'age,chol,ill\n50,"1,200",0\n60,850,1\n70,"2,400",1\n')
    of_file = schema(AGE, CHOL, ILL)
    for site in (PLAIN, COMMA):
        (finding,) = report(of_file, path, site).findings
        assert finding.text.startswith("column 'chol': parted thousands in 2 rows (1, 3)")
        assert "decimal = ','" not in finding.text
    assert report(of_file, path, COMMAS).fits
    for site in (PLAIN, COMMA, COMMAS):
        assert not report(of_file, written(tmp_path, path.read_text().replace("850", '"1,25"')), site).fits


TARGET = {"role": "target"}
PATIENT = {"role": "patient"}
WHEN = {"role": "observed_at"}


@pytest.mark.parametrize("more", [{}, TARGET, {"role": "survival_time"}, WHEN, {"range": [0.5, 2000]}])
def test_a_sites_notation_holds_whatever_a_number_is_for(more: dict[str, Any]) -> None:
    others = [
        {"name": "age", "type": "number"},
        {"name": "y", "type": "number" if more == TARGET else "boolean", "role": "target"},
    ]
    if more.get("role") == "survival_time":
        others[1] = {"name": "y", "type": "boolean", "role": "event"}
    of_x = schema({**X, **more}, *others)
    table = pa.table({"x": ["1.200,5", "0,5"], "age": ["5,5", "6"], "y": ["1", "0"]})
    rows, findings = read(of_x, table, POINTS)
    assert [finding.text for finding in findings] == []
    assert rows.columns[0].tolist() == [1200.5, 0.5]


def test_typed_numbers_have_no_notation() -> None:
    """Numbers of a Parquet file are no text that somebody wrote."""
    typed = pa.array([1.25, 1200.5, None])
    for numbers in (typed, typed.cast(pa.decimal128(8, 3))):
        np.testing.assert_array_equal(values(X, numbers, POINTS), [1.25, 1200.5, np.nan])


@pytest.mark.parametrize(
    ("rule", "texts", "numbers"),
    [
        ("limit", ["<5", "< 5", "&lt;5", "<=5", "\u22645", ">100", "7"], [5, 5, 5, 5, 5, 100, 7]),
        ("half", ["<5", "<0.5", "\u2265100", "&gt;100", "7"], [2.5, 0.25, 100, 100, 7]),
        ("missing", ["<5", ">100", "7"], [np.nan, np.nan, 7]),
    ],
)
def test_values_beyond_a_detection_limit(rule: str, texts: list[str], numbers: list[float]) -> None:
    np.testing.assert_array_equal(values({**X, "detection_limit": rule}, texts), numbers)


def test_a_detection_limit_is_read_and_converted_as_numbers_are() -> None:
    half = {**X, "unit": "mg", "detection_limit": "half", "range": [0, 300]}
    site = SiteTable(decimal=",", columns={"x": SiteColumn(unit="g", factor=1000.0, offset=10.0)})
    assert values(half, ["<0,05", "0,1"], site).tolist() == [30, 110]
    turned = SiteTable(columns={"x": SiteColumn(unit="g", factor=-1.0, offset=100.0)})
    assert values(half, ["<40", ">40"], turned).tolist() == [60, 30]
    for text, problem in (("<-5", Problem.BEYOND_LIMIT), ("<900", Problem.OUT_OF_RANGE)):
        _, findings = looked_at(half, ["7", text])
        assert [finding.problem for finding in findings] == [problem]
    _, findings = looked_at({**X, "detection_limit": "missing", "missing": "refuse"}, ["7", "<5"])
    assert [finding.problem for finding in findings] == [Problem.MISSING]
    marked = SiteTable(missing_marks=("<5",))
    np.testing.assert_array_equal(values(X, ["7", "<5"], marked), [7, np.nan])


@pytest.mark.parametrize(
    ("site", "texts"),
    [
        (PLAIN, ["1", "1.0", "01", "1.00", "+1", "2", "?", "-9", "-9.0", "-09"]),
        (COMMA, ["1", "1,0", "01", "1,00", "+1", "2,0", "?", "-9", "-9,0", "\u22129,0"]),
    ],
)
def test_codes_and_marks_are_numbers_however_they_are_written(site: SiteTable, texts: list[str]) -> None:
    codes = values({**KIND, "missing_marks": ["?", "-9"]}, texts, site)
    assert codes.tolist() == [0] * 5 + [1] + [-1] * 4
    numbers = values({**X, "missing_marks": ["?", "-9"]}, texts, site)
    np.testing.assert_array_equal(numbers, [1, 1, 1, 1, 1, 2, *[np.nan] * 4])


@pytest.mark.parametrize(("site", "text"), [(PLAIN, "1,0"), (COMMA, "1,000"), (PLAIN, "1.5"), (PLAIN, "3")])
def test_a_code_that_is_none_of_the_schemas_is_refused(site: SiteTable, text: str) -> None:
    _, findings = looked_at(KIND, [text], site)
    assert [finding.problem for finding in findings] == [Problem.UNDECLARED]


@pytest.mark.parametrize(
    ("site", "text", "hint"),
    [(PLAIN, "1,0", True), (COMMA, "1.0", True), (COMMAS, "1,0", False), (POINTS, "1.0", False), (PLAIN, "1,5", False)],
)
def test_a_code_with_the_other_decimal_sign_has_a_hint(site: SiteTable, text: str, hint: bool) -> None:
    (finding,) = looked_at(KIND, ["1", text], site)[1]
    assert (f"; for numbers such as {text} say decimal = {text[1]!r} in the site's file" in finding.detail) is hint


def test_codes_that_a_number_does_not_tell_apart_are_told_by_their_text() -> None:
    two = {**KIND, "categories": ["1", "01"]}
    assert values(two, ["1", "01"]).tolist() == [0, 1]
    assert [finding.problem for finding in looked_at(two, ["1.0"])[1]] == [Problem.UNDECLARED]
    assert values(
        {**KIND, "type": "boolean", "categories": ["0", "1"], "missing": "median"}, ["0,0", "1,0"], COMMA
    ).tolist() == [0, 1]
    assert values({"name": "x", "type": "boolean"}, ["false", "1.0", "TRUE", "0"]).tolist() == [0, 1, 1, 0]


def test_a_sites_own_codes_go_before_the_schemas_in_every_form() -> None:
    """A file that writes 1.0 for what the site's file calls 1 was read by the schema's codes."""
    of_x = {**KIND, "categories": ["0", "1"]}
    for site, text in ((PLAIN, "1.0"), (COMMA, "1,0")):
        own = site.model_copy(update={"columns": {"x": SiteColumn(values={"1": "0", "2": "1"})}})
        assert values(of_x, ["1", text, "2"], own).tolist() == [0, 0, 1]


def test_a_sites_own_marks_and_dates() -> None:
    site = SiteTable(missing_marks=("k.A.",), columns={"x": SiteColumn(missing_marks=("-1,0",), decimal=",")})
    np.testing.assert_array_equal(
        values({**X, "missing_marks": ["?"]}, ["5", "k.A.", "-1", "-1,00", "?"], site), [5, *[np.nan] * 4]
    )
    time = {"name": "x", "type": "time", "role": "observed_at"}
    german = SiteTable(columns={"x": SiteColumn(format="%d.%m.%Y")})
    first = datetime(2026, 3, 31, tzinfo=UTC).timestamp()
    assert values(time, ["31.03.2026"], german).tolist() == [first]
    assert values({**time, "format": "%Y%m%d"}, ["31.03.2026"], german).tolist() == [first]
    iso = SiteTable(columns={"x": SiteColumn(format="")})
    assert values({**time, "format": "%Y%m%d"}, ["2026-03-31"], iso).tolist() == [first]
    for given in ("%d%d", "%Q", "%"):
        _, findings = looked_at(time, ["2026-03-31"], SiteTable(columns={"x": SiteColumn(format=given)}))
        assert [finding.problem for finding in findings] == [Problem.NOT_A_TIME]


def test_ids_of_a_file_with_commas_are_those_of_a_file_with_points() -> None:
    who = {"name": "x", "type": "text", "role": "patient", "missing_marks": ["-9"]}
    assert values(who, ["1010,0", "p,5", "-9,0"], COMMA).tolist() == values(who, ["1010.0", "p,5", "-9.0"]).tolist()
    assert values({**WHOLE, **PATIENT}, ["1010,0"], COMMA).tolist() == [1010]


@pytest.mark.parametrize(
    ("site", "ids"),
    [
        (COMMA, ["1010", "1010,0", "1010,", "1,01E+03", "+1,01e3"]),
        (POINTS, ["1010", "1.010", "1.010,0", "1,01E+03"]),
        (COMMAS, ["1010", "1,010", "1,010.0", "1.01E+03"]),
        (SiteTable(thousands="'"), ["1010", "1'010"]),
    ],
)
def test_an_id_is_one_patients_in_every_notation_of_a_number(tmp_path: Path, site: SiteTable, ids: list[str]) -> None:
    """One patient was in training and test."""
    site = site.model_copy(update={"separator": ";"})
    training = written(tmp_path, f"age;ill;who\n50;0;{ids[0]}\n51;1;b\n")
    for one in ids[1:]:
        test = written(tmp_path, f"age;ill;who\n53;0;{one}\n54;1;c\n", "test.csv")
        found = report(schema(AGE, ILL, WHO), training, site, test=test).findings
        assert [finding.problem for finding in found] == [Problem.BOTH_SIDES], one
    others = written(tmp_path, "age;ill;who\n53;0;1.01.0\n54;1;10,1\n", "test.csv")
    assert report(schema(AGE, ILL, WHO), training, site, test=others).fits


_NO_TEXT = [
    "hex",
    "rot13",
    "zip",
    "base64",
    "bz2",
    "undefined",
    "punycode",
    "idna",
    "unicode_escape",
    "raw_unicode_escape",
]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[columns.chole]\nname = 'x'", "the schema has no column 'chole'"),
        ("[columns.chol]\nfactor = 2.0", "say which, with unit"),
        ("encoding = 'utf8x'", "Python knows no such encoding"),
        ("separater = ';'", "did you mean 'separator'"),
        *((f"encoding = '{name}'", "it is no encoding of text") for name in _NO_TEXT),
        ('encoding = "utf\\u0000"', "Python knows no such encoding"),
        *((f"separator = '{one}'", "a separator is one character") for one in ('"', "", ";;", "a", ".", "-")),
        ("skip_lines = -1", "greater than or equal to 0"),
        ("skip_lines = true", "valid integer"),
        (
            '[columns."gr\u00f6\u00dfe"]\nunit = "g"\n[columns."gro\u0308\u00dfe"]\n',
            "two columns have one name, written with other characters",
        ),
        ("thousands = ';'", "parted by ',', '.', ' '"),
        ("thousands = '.'", "decimal and thousands are both '.'"),
        ("decimal = ','\nthousands = ','", "decimal and thousands are both ','"),
        ("decimal = ','\n[columns.chol]\nthousands = ','", "column 'chol': decimal and thousands are both ','"),
        ("[columns.chol]\nformat = '%d'", "columns.chol.format: the schema's column has type number, not time"),
        ("[columns.seen]\nthousands = '.'\ndecimal = ','", "columns.seen.thousands: .* not integer or number"),
        ("[columns.seen]\nunit = 'x'\nfactor = 2.0", "columns.seen.factor"),
        ("[columns.chol.values]\nx = '1'", "columns.chol.values: .* not boolean or category"),
        ("[columns.ill.values]\nx = '7'", "columns.ill.values: the schema has no category '7'; it has 0, 1"),
        (
            "[columns.chol]\nformt = '%d'",
            r"did you mean 'format'\? \(allowed: decimal, factor, format, missing_marks, name",
        ),
    ],
)
def test_a_sites_file_that_cannot_be_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read_site_table(written(tmp_path, text, "site.toml"), schema(AGE, CHOL, ILL, SEEN, WHO))


SEMICOLONS = SiteTable(separator=";", decimal=",")


def test_a_file_with_commas_has_the_draft_and_the_findings_of_one_with_points(tmp_path: Path) -> None:
    text = cleveland_text(60) + "50.0,1.0,2.0,-9.0,-9,0.0,0.0,150.0,1.0,2.3,1.0,?,7.0,0\n"
    pointed = written(tmp_path, text)
    drafted = draft(pointed, PLAIN, None)
    comma = written(tmp_path, text.translate(str.maketrans(",.", ";,")), "comma.csv")
    assert draft(comma, SEMICOLONS, None).partition("\n")[2] == drafted.partition("\n")[2]
    assert drafted.count('type = "number"') + drafted.count('type = "integer"') >= 5
    found = report(cleveland_schema(), comma, SEMICOLONS)
    assert found.fits
    assert found == report(cleveland_schema(), pointed)
    pointed.write_text(text.replace(",", ";").replace(".", ",").replace("140,0", "1,400"))
    with pytest.raises(ConfigurationError, match=r"^column [0-9]+: a comma before three digits may part thousands"):
        draft(pointed, SEMICOLONS, None)


def test_a_draft_of_detection_limits_own_marks_and_dates(tmp_path: Path) -> None:
    site = SiteTable(missing_marks=("k.A.",), columns={"seen": SiteColumn(format="%d.%m.%Y")})
    rows = [
        f'{"<5" if n % 4 == 0 else n},{n % 28 + 1}.3.2026,{"k.A." if n % 5 == 0 else n % 2},"1,{n:03}"'
        for n in range(40)
    ]
    path = written(tmp_path, "\n".join(["crp,seen,ill,cells", *rows]))
    drafted = draft(path, site, "ill")
    assert 'name = "crp"\ntype = "number"\nunit = ""\nrange = [0, 40]\ndetection_limit = "half"' in drafted
    assert 'name = "seen"\ntype = "time"' in drafted
    assert 'categories = ["0", "1"]' in drafted
    assert 'missing = "drop_row"' in drafted
    assert "k.A." not in drafted
    assert "# numbers of another form" in drafted


def test_a_draft_of_numbers_of_every_size(tmp_path: Path) -> None:
    rows = [f"{n}e307,{'1e999' if n == 3 else n},-{n}e-300,{n % 2}" for n in range(1, 18)]
    drafted = draft(written(tmp_path, "\n".join(["huge,x,tiny,ill", *rows])), PLAIN, None)
    assert 'name = "x"\ntype = "number"\nunit = ""\nrange = [0, 20]' in drafted


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (["0", "17e307"], 'type = "number"\nunit = ""\nrange = [0, 1.7976931348623157e+308]'),
        (["-17e307", "17e307"], "range = [-1.7976931348623157e+308, 1.7976931348623157e+308]"),
        (["17.5e307"], "range = [1e+308, 1.7976931348623157e+308]"),
        (["0"], 'type = "integer"\nunit = ""\nrange = [0, 1]'),
        (["0.0"], 'type = "integer"\nunit = ""\nrange = [0, 1]'),
        (["1e999"], "# name"),
        (["inf", "-9"], "# name"),
        (["word", "-9", "-9"], "# name"),
        ([*map(str, range(30)), "inf"], 'type = "number"\nunit = ""\nrange = [0, 30]'),
        (["1.5", "-Infinity", "2.5"], 'type = "number"\nunit = ""\nrange = [1, 3]'),
    ],
)
def test_a_draft_has_the_numbers_that_there_are(tmp_path: Path, numbers: list[str], said: str) -> None:
    path = written(tmp_path, "\n".join(["x_id,ill", *(f"{one},{n % 2}" for n, one in enumerate(numbers * 2))]))
    drafted = draft(path, PLAIN, "ill", header=True)
    assert said.removeprefix("# name") in drafted
    assert ('# name = "x_id"' in drafted) is said.startswith("# name")
    assert "patient" not in drafted.partition("[schema]")[2]
    ranges = [one["range"] for one in tomllib.loads(drafted)["schema"]["columns"] if "range" in one]
    assert np.isfinite(ranges).all()


def test_a_draft_reads_typed_decimals_without_the_sites_notation(tmp_path: Path) -> None:
    numbers = pa.array([1.234 + n for n in range(20)]).cast(pa.decimal128(8, 3), safe=False)
    path = tmp_path / "table.parquet"
    pyarrow.parquet.write_table(pa.table({"x": numbers, "ill": [0, 1] * 10}), path)
    assert "range = [0, 30]" in draft(path, POINTS, None)


def test_a_draft_of_one_column_is_refused(tmp_path: Path) -> None:
    for text in ("age\n50\n60\n", ",age\n0,50\n1,60\n"):
        with pytest.raises(ConfigurationError, match=r"a schema needs a feature and a target, .* is 'age'"):
            draft(written(tmp_path, text), PLAIN, None, header=True)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({**WHOLE, "detection_limit": "half"}, "half of a limit need not be a whole number"),
        ({**KIND, "detection_limit": "limit"}, "a column of type 'category' has no detection_limit"),
        ({**X, "detection_limit": "limit", "role": "observed_at"}, "a observed_at has no detection_limit"),
        ({**X, "detection_limit": "third"}, "'limit', 'half' or 'missing'"),
    ],
)
def test_what_cannot_have_a_detection_limit(column: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        schema(column, ILL)


def test_a_schema_without_detection_limits_keeps_its_bytes() -> None:
    plain: TableSchema = schema(X, ILL)
    assert "detection_limit" not in plain.canonical().decode()
    ruled = schema({**X, "detection_limit": "half"}, ILL)
    assert json.loads(ruled.canonical())["columns"][0]["detection_limit"] == "half"
    assert ruled.digest() != plain.digest()


DAYS = ["3.131", "3.111", "562", "3.339", "229"]


@pytest.mark.parametrize("texts", [DAYS, ["-12.500", "1.200", "-980"], ["<1.200", "2.500", "<500"]])
@pytest.mark.parametrize("rows_of_a_batch", [2**20, 4])
def test_a_point_that_parts_thousands_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str], rows_of_a_batch: int
) -> None:
    """All batches decide together; what the site says of its notation holds."""
    monkeypatch.setattr("client_agent.data.source._BATCH_FIELDS", rows_of_a_batch)
    path = written(tmp_path, "x;ill\n" + "".join(f"{text};{n % 2}\n" for n, text in enumerate(texts)))
    made = schema({**X, "detection_limit": "limit"}, ILL)
    pointed = sum("." in text for text in texts)
    (finding,) = report(made, path, SiteTable(separator=";")).findings
    assert finding.text.startswith(f"column 'x': parted thousands in {pointed} rows: all points stand before three")
    for said in (
        SiteTable(separator=";", decimal="."),
        SiteTable(separator=";", decimal=",", thousands="."),
        SiteTable(separator=";", thousands=""),
        SiteTable(separator=";", columns={"x": SiteColumn(decimal=".")}),
    ):
        assert report(made, path, said).fits


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        (X, ["1.234", "0.567", "12.345"]),
        (X, ["1.234", "0.567", "120"]),
        (X, ["1.234", "2.5", "120"]),
        (X, ["1.234", "2.345", "2000"]),
        (X, ["1.234", "2.345", "0", "2"]),
        (X, ["1.234", "120", "56"]),
        ({**X, "range": [0, 300]}, [*DAYS[:3], "229"]),
        (X, pa.array([3.131, 3.111, 562.0])),
        (X, [*DAYS, "1e3"]),
    ],
)
def test_honest_decimals_are_no_parted_thousands(column: dict[str, Any], texts: Any) -> None:
    _, findings = looked_at(column, texts)
    assert Problem.THOUSANDS not in [finding.problem for finding in findings]
