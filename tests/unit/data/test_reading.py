"""A table's text as programs and people write it: marks, line ends, quotes, titles, blank lines, forms of Unicode."""

from __future__ import annotations

import codecs
import tomllib
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from client_agent.data.draft import draft
from client_agent.data.findings import Problem
from client_agent.data.prepare import patient_ids, sides
from client_agent.data.site_table import PLAIN, SiteColumn, SiteTable, read_site_table
from protocol.errors import ConfigurationError
from protocol.messages.control import TableSchema
from tests.kit.present import present
from tests.unit.data.made import AGE, CHOL, GOOD, ILL, PAIN, WHO, prepare, read, report, schema, written

SEMICOLONS = GOOD.replace(",", ";")
SIZE = {"name": "größe", "type": "number", "unit": "µg/l"}
SEX = {"name": "sex", "type": "category", "categories": ["männlich", "weiblich"]}


def drafted(path: Path, site: SiteTable = PLAIN, target: str | None = None, **more: Any) -> dict[str, Any]:
    return tomllib.loads(draft(path, site, target, **more))["schema"]


def composed(form: str, text: str) -> str:
    return unicodedata.normalize(form, text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "site"),
    [
        pytest.param(GOOD.replace("\n", "\r"), {}, id="line ends of an old Mac"),
        pytest.param(GOOD.replace("\n", "\r\n", 3).replace("1\n", "1\r"), {}, id="mixed line ends"),
        pytest.param(GOOD.replace("\n", "\r\r\n"), {}, id="line ends written twice"),
        pytest.param("\n \n" + GOOD.replace("\n", "\n\n"), {}, id="blank lines"),
        pytest.param(codecs.BOM_UTF8 + GOOD.encode(), {"encoding": "U8"}, id="mark of U8"),
        pytest.param(codecs.BOM_UTF8 + GOOD.encode(), {"encoding": "cp65001"}, id="mark of cp65001"),
        pytest.param(codecs.BOM_UTF8 + GOOD.encode(), {}, id="mark of UTF-8"),
        pytest.param(codecs.BOM_UTF8 * 2 + GOOD.encode(), {}, id="two marks"),
        pytest.param(codecs.BOM_UTF16_LE + GOOD.encode("utf-16-le"), {"encoding": "utf-16-le"}, id="mark of UTF-16"),
        pytest.param(codecs.BOM_UTF16_BE + GOOD.encode("utf-16-be"), {"encoding": "UTF-16LE"}, id="the mark decides"),
        pytest.param(GOOD.encode("utf-32"), {"encoding": "utf-32"}, id="mark of UTF-32"),
        pytest.param(GOOD.encode("utf-16-be"), {"encoding": "utf-16-be"}, id="no mark"),
        pytest.param("sep=;\r\n" + SEMICOLONS, {}, id="a line that names the separator"),
        pytest.param('\ufeff"SEP=;"\n' + SEMICOLONS, {"separator": ";"}, id="the same in quotes"),
        pytest.param("sep=\\t\n" + GOOD.replace(",", "\t"), {}, id="the same for tabs"),
        pytest.param("sep=;,,,\n" + GOOD, {}, id="the same, saved again with commas"),
        pytest.param('Report, "of" a laboratory\n\n' + GOOD, {"skip_lines": 2}, id="a title"),
        pytest.param("sep=;\nReport\n" + SEMICOLONS, {"skip_lines": 2}, id="a title below the separator's line"),
        pytest.param(GOOD.replace("age,", "\u00a0age \u200b,"), {}, id="invisible characters around a name"),
    ],
)
def test_what_programs_write_is_read(tmp_path: Path, content: str | bytes, site: dict[str, Any]) -> None:
    path = written(tmp_path, content)
    found = report(schema(), path, SiteTable(**site))
    assert (found.rows, found.findings) == (6, ())
    assert [one["name"] for one in drafted(path, SiteTable(**site))["columns"]] == ["age", "chol", "pain", "ill"]


@pytest.mark.parametrize(
    ("content", "site", "said"),
    [
        ('age,"chol,pain,ill\n' + "50,200,1,0\n" * 20_000, {}, "line 1 cannot be read as fields: a quote that begins"),
        (
            GOOD.replace("\n40,", '\n"40,'),
            {},
            "line 5 cannot be read as fields: a quote that begins there is not closed",
        ),
        (GOOD.replace("\n40,", '\n"40" years,'), {}, "line 5 cannot .* has more text behind it"),
        ("\n" + GOOD.replace("\n40,", "\n4\0,"), {}, "line 6 holds zero bytes, so it is no text in utf-8"),
        (GOOD.encode("utf-16"), {}, "but in utf-16, as its byte-order mark says: say encoding = 'utf-16'"),
        (codecs.BOM_UTF8 + GOOD.encode(), {"encoding": "cp1252"}, "not written in cp1252 but in utf-8"),
        (GOOD.encode("utf-16-le"), {}, "say encoding = 'utf-16-le' in the site's file"),
        (GOOD.encode("utf-16-le"), {"encoding": "utf-16"}, "has no byte-order mark: say encoding = 'utf-16-le'"),
        ("Report\n\n" + GOOD, {}, "if it is a title above the names, say skip_lines = 2"),
        ("Report,,,\n" + GOOD, {}, "line 1 has one field and line 2 has more: .* say skip_lines = 1"),
        (",,,\n" + GOOD, {}, "line 1 has no names"),
        (GOOD, {"skip_lines": 9}, "the file is empty below skip_lines = 9"),
        ("sep=;\n" + SEMICOLONS, {"separator": "|"}, r"line 1 says sep=; and the site's file .* separator = '\|'"),
        (GOOD, {"separator": ";"}, "line 1 is one field with commas in it: say separator = ','"),
        ("Alter;ill\n50,5;0\n", {}, "line 1 is one field with semicolons in it"),
        *(
            (text.encode(), {"encoding": name}, f"is written in utf-8, not in {name}: say encoding = 'utf-8'")
            for text in (GOOD.replace("age", "größe"), GOOD + "50,200,ä,1\n")
            for name in ("latin-1", "cp1252", "ascii", "cp850", "koi8-r")
        ),
        (b"\x93\x07\xe2,1\n" * 40, {}, "it holds bytes that stand in no text: give a CSV or Parquet file"),
        (b"", {}, "the file is empty"),
        (codecs.BOM_UTF8, {}, "the file is empty"),
        (b"\xd0\xcf\x11\xe0 of an old workbook", {}, "is a spreadsheet or another document"),
        (b"<html><table><tr><td>1</td></tr></table>", {}, "is a web page or XML: save or unpack it as CSV"),
        (b"\xef\xbb\xbf\r\n<?xml version='1.0'?><Workbook/>", {}, "is a web page or XML"),
        (b"PK\x03\x04rest of a workbook", {}, "is a spreadsheet or another archive: save or unpack it as CSV"),
        (b"\x1f\x8bgz", {}, "is compressed"),
        (b"age\tchol\n1\t2\n", {}, r"separator = '\\t'"),
        ("âge,chol,pain,ill\n5,1,1,0\n".encode("latin-1"), {}, "not written in utf-8: say encoding = 'latin-1'"),
        (GOOD.encode() + b"50,200,\xe9,1\n", {}, "not written in utf-8"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_line(
    tmp_path: Path, content: str | bytes, site: dict[str, Any], said: str
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ConfigurationError, match=said):
        report(schema(), path, SiteTable(**site))
    with pytest.raises(ConfigurationError, match=said):
        draft(path, SiteTable(**site), None)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "cp850", "cp037", "gbk", "shift_jis", "utf-7", "utf-16"])
def test_what_an_encoding_wrote_is_read_in_it(tmp_path: Path, encoding: str) -> None:
    """Also where its first bytes beyond ASCII could be UTF-8, as two letters of GBK are."""
    name = {"gbk": "联通", "shift_jis": "年齢"}.get(encoding, "Ã¤ größe")
    name = name.removeprefix("Ã¤ ") if encoding in ("cp850", "cp037") else name
    path = written(tmp_path, GOOD.replace("age", name).encode(encoding))
    assert report(schema({**AGE, "name": name}, CHOL, PAIN, ILL), path, SiteTable(encoding=encoding)).fits
    assert report(schema(), written(tmp_path, GOOD.encode(encoding)), SiteTable(encoding=encoding)).fits


def test_rows_are_numbered_with_those_that_have_another_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 is the first row of data; blank lines are no rows, rows of another width are."""
    text = "age,chol,pain,ill\n50,200,1,0\n\n60,300,2,1\n1,2,3\n700,300,2,1\n1,2,3,4,5\n700,1,2,1\n"
    for fields in (2**20, 4):
        monkeypatch.setattr("client_agent.data.source._BATCH_FIELDS", fields)
        found = {finding.problem: finding.text for finding in report(schema(), written(tmp_path, text)).findings}
        assert found == {
            Problem.FIELD_COUNT: "rows with another number of fields in 2 rows (3, 5): expected 4 fields",
            Problem.OUT_OF_RANGE: "column 'age': out of range in 2 rows (4, 6): the schema allows 0 to 120 years",
        }
    apart = report(schema(), written(tmp_path, GOOD), test=written(tmp_path, text, "test.csv")).findings
    assert [finding.first for finding in apart] == [[3, 5], [4, 6]]
    assert "# left out: rows with another number of fields in 2 rows (3, 5)" in draft(
        tmp_path / "test.csv", PLAIN, None
    )


def test_a_blank_line_in_a_table_of_one_column_is_no_value(tmp_path: Path) -> None:
    """A spreadsheet writes a missing value so: rows after it would take another's place."""
    only = TableSchema.model_construct(columns=schema(AGE, ILL).columns[:1])
    assert report(only, written(tmp_path, "age\n50\n60\n\n\n")).fits
    (finding,) = report(only, written(tmp_path, "age\n50\n\n700\n")).findings[:1]
    assert finding.text == "rows with another number of fields in 1 rows (2): expected 1 fields"


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_forms_of_unicode_are_one(tmp_path: Path, form: str) -> None:
    """Names, units, categories, marks, the site's own words: composed or not, in the schema or in the file."""
    other = {"NFC": "NFD", "NFD": "NFC"}[form]
    categories = [composed(form, word) for word in ("männlich", "weiblich")]
    size = {"name": composed(form, "größe"), "type": "number", "unit": composed(form, "µg/l"), "missing": "median"}
    made = schema(
        size,
        {**SEX, "categories": categories},
        ILL,
        missing_marks=[composed(form, "fällt aus")],
    )
    text = composed(other, "größe [μg/l],sex,ill\n170,männlich,0\nfällt aus\u200b,weiblich,1\n180,Männer,1\n")
    site = SiteTable(
        columns={
            composed(other, "größe"): SiteColumn(),
            "sex": SiteColumn(values={composed(form, "Männer"): composed(other, "männlich")}),
        }
    )
    found = report(made, written(tmp_path, text), site)
    assert (found.rows, found.findings) == (3, ())


def test_names_that_only_look_alike_are_told_apart_by_number(tmp_path: Path) -> None:
    found = report(schema(AGE, ILL), written(tmp_path, "a\u00a0ge,ill\n50,0\n60,1\n")).findings
    assert [finding.problem for finding in found] == [Problem.ALMOST_COLUMN]
    assert r'the file has "a\u00a0ge"; if it is the same, say name = "a\u00a0ge" under [columns.age]' in found[0].text
    said = 'encoding = "utf-8"\n[columns.age]\nname = "a\\u00a0ge"\n'
    site = read_site_table(written(tmp_path, codecs.BOM_UTF8 + said.encode(), "site.toml"), schema(AGE, ILL))
    assert report(schema(AGE, ILL), tmp_path / "table.csv", site).fits
    lookalikes = report(schema(SEX, ILL), written(tmp_path, "sex,ill\nMännlich,0\nweiblich,1\n")).findings
    assert "[columns.sex.values] in the site's file" in lookalikes[0].text
    assert (
        "columns.sex" not in report(schema(SEX, ILL), written(tmp_path, "sex,ill\nx,0\nweiblich,1\n")).findings[0].text
    )


def test_a_column_with_two_units_in_the_first_line_is_asked_for(tmp_path: Path) -> None:
    (finding,) = report(schema(CHOL, ILL), written(tmp_path, "chol [mg/dl],chol [mmol/l],ill\n1,2,0\n2,3,1\n")).findings
    assert finding.problem is Problem.NAMED_TWICE
    assert "'chol [mg/dl]', 'chol [mmol/l]': say which" in finding.text


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"ill": ["0", "1"], "who": [["a"], ["b"]]}),
        pa.table({"ill": ["0", "1"], "who": pa.array([b"\xff", b"b"])}),
    ],
)
def test_a_column_of_another_kind_is_named(tmp_path: Path, table: pa.Table) -> None:
    pyarrow.parquet.write_table(table.append_column("age", pa.array([1.0, 2.0])), tmp_path / "table.parquet")
    with pytest.raises(ConfigurationError, match=r"column 'who' is of type .*: make it numbers, texts or times"):
        report(schema(AGE, ILL, WHO), tmp_path / "table.parquet")


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pyarrow.parquet.write_table(
        pa.table({name: [str(n % 2) for n in range(999)] for name in ("age", "chol", "pain", "ill")}),
        path,
        compression="none",
        use_dictionary=False,
    )
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="is damaged"):
        report(schema(), path)


IDS = ["1010", "1010.0", "01010", "+1010", "1.01E+3", "\u200b1010\u00a0", "１０１０", '="1010"', "'1010", "'01010'"]


def test_an_id_written_in_several_ways_is_one_patient(tmp_path: Path) -> None:
    """All rows on one side, where a clean id alone would be; others as before."""
    made = schema(AGE, ILL, WHO, split={"test": 0.4, "seed": 3})
    others = [f"{30 + n},{n % 2},P{n // 2}" for n in range(30)]
    for clean in ("1010", "ward 7/p-03"):
        forms = IDS if clean == "1010" else ["Ward  7/P-3", "ward 7/P-03\u200b", "WARD\u00a07/p-003", clean]
        sides_of = []
        for ids in ([clean], forms, forms[::-1]):
            text = "\n".join(["age,ill,who", *(f"50,0,{one}" for one in ids), *others]) + "\n"
            table = pyarrow.csv.read_csv(pa.BufferReader(text.encode()), convert_options=_as_text())
            rows = read(made, table)[0]
            side = sides(made, rows)
            assert len(set(side[: len(ids)].tolist())) == 1
            sides_of.append([side[0], *side[len(ids) :].tolist()])
        assert sides_of[0] == sides_of[1] == sides_of[2]
    training = written(tmp_path, "age,ill,who\n50,0,01010\n51,1,b\n")
    found = report(made, training, test=written(tmp_path, "age,ill,who\n53,0,1010.0\n54,1,c\n", "test.csv")).findings
    assert [finding.problem for finding in found] == [Problem.BOTH_SIDES]
    with pytest.raises(ConfigurationError, match="1 patients have rows in both files"):
        prepare(made, training, test=tmp_path / "test.csv")


def _as_text() -> Any:
    return pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(("age", "ill", "who"), pa.string()))


def test_ids_of_different_patients_stay_apart(tmp_path: Path) -> None:
    """No spreadsheet writes 1010 as 1_010 or 0x3F2, and an underscore may part a ward from a number."""
    made = schema(AGE, ILL, WHO)
    ids = [
        "12.10",
        "12.1",
        "12.01",
        "1_12",
        "11_2",
        "1 12",
        "11 2",
        "1e400",
        "1e401",
        "-5",
        "5",
        "a10",
        "a100",
        "9" * 60,
        "1010",
        "1_010",
        "0x3F2",
    ]
    table = pa.table({"age": ["1"] * len(ids), "ill": ["0"] * len(ids), "who": ids})
    rows = read(made, table)[0]
    found = present(patient_ids(made, rows))
    assert len(np.unique(found)) == len(ids)


INDEXED = "\n".join([",age,na,pain,ill", *(f"{n},{30 + n},{700 + n},{n % 3 + 1},{n % 2}" for n in range(12))])


def test_a_draft_leaves_out_what_has_no_name(tmp_path: Path) -> None:
    """An index that a program wrote, and a laboratory's sodium, make no data of a line of names."""
    path = written(tmp_path, INDEXED)
    found = drafted(path)
    assert "header" not in found
    assert "missing_marks" not in found
    assert [one["name"] for one in found["columns"]] == ["age", "na", "pain", "ill"]
    assert "# column 1 is left out: it has no name" in draft(path, PLAIN, None)
    again = draft(written(tmp_path, "Unnamed: 0" + INDEXED.replace("na", "age", 1)), PLAIN, "pain")
    assert [again.count(said) for said in ("is left out: it has no name", "is left out: its name is there twice")] == [
        1,
        2,
    ]
    assert [one["name"] for one in tomllib.loads(again)["schema"]["columns"]] == ["pain", "ill"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("2019,2020,2021\n1.5,2,3\n2,4,6\n", True),
        ("0,1,2\n1,0,1\n0,0,1\n", True),
        ("who,2019,2020\n7,2,3\n8,4,6\n", True),
        ("sex,town,ill\nf,Bern,yes\nm,Chur,no\n", True),
        ("id,2019,2020\nP7,2,3\nP8,4,6\n", True),
        ("P6,2019,2020\nP7,2018,2021\n", False),
        ("P6,2019,2020\nP7,2,2019\n", False),
        ("63,1,?,0\n67,1,3,1\n", False),
        ("f,Bern,yes\nf,Chur,no\nm,Bern,no\n", False),
        ("2020-01-01,f,1\n2020-01-02,f,2\n", False),
        ("na,f,1\n5,f,2\n", False),
        ("1e999,2,3\n1,2,3\n", False),
    ],
)
def test_a_first_line_is_guessed_by_what_stands_below(tmp_path: Path, text: str, named: bool) -> None:
    assert drafted(written(tmp_path, text)).get("header", True) is named


def test_a_draft_of_no_rows_is_refused(tmp_path: Path) -> None:
    for header in (None, True):
        with pytest.raises(ConfigurationError, match="no row of data"):
            draft(written(tmp_path, "age,chol,pain,ill\n"), PLAIN, None, header=header)


def test_every_column_of_a_batch_has_its_own_reader(tmp_path: Path) -> None:
    """As text and as Parquet the same examples, whatever the batches."""
    text = "age,chol,pain,ill\n" + "".join(f"{20 + n},{200 + n},{n % 3 + 1},{n % 2}\n" for n in range(40))
    path = written(tmp_path, text)
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(path), tmp_path / "table.parquet")
    first, second = prepare(schema(), path), prepare(schema(AGE, CHOL, PAIN, ILL), tmp_path / "table.parquet")
    np.testing.assert_array_equal(first.data.train.X, second.data.train.X)


def test_a_draft_takes_no_date_for_the_target(tmp_path: Path) -> None:
    path = written(tmp_path, "age,ill,seen\n50,0,2026-01-01\n51,1,2026-01-02\n")
    for target in (None, "seen"):
        with pytest.raises(ConfigurationError, match="column 'seen' holds dates: say --target NAME"):
            draft(path, PLAIN, target)
    assert tomllib.loads(draft(path, PLAIN, "ill"))["schema"]["columns"][2]["role"] == "observed_at"
