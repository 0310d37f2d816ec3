"""A table in batches of rows, every value as text or null: from a CSV file, a Parquet file or record batches.

Whatever the types of a file or database are, columns are read by the schema's (client_agent.data.values), so that the
same table gives the same examples in every form.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from client_agent.data.findings import Findings, Problem
from client_agent.data.site_table import SiteTable
from protocol.errors import ConfigurationError

_BLOCK_BYTES: Final = 2**22
_BATCH_ROWS: Final = 2**16
_MOST_HEAD_CHARACTERS: Final = 2**20
_PACKED: Final = {b"PK\x03\x04": "a spreadsheet or another archive", b"\x1f\x8b": "compressed"}
_SEPARATORS: Final = {";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True)
class Table:
    """``names`` is the first line's, None where the file has none. ``batches`` can be gone through once.

    ``query``: the study's, where that gave the table and its columns their names.
    """

    where: str
    names: tuple[str, ...] | None
    width: int
    batches: Iterable[pa.RecordBatch]
    query: str = ""


def open_table(path: Path, site: SiteTable, findings: Findings, *, header: bool) -> Table:
    """A file by its ending: Parquet, or text with separators. Raises: ConfigurationError that says what to do"""
    if not path.is_file():
        raise ConfigurationError(f"{path} is missing: give a CSV or Parquet file")
    with path.open("rb") as file:
        begins = file.read(4)
    packed = next((called for magic, called in _PACKED.items() if begins.startswith(magic)), None)
    if packed is not None:
        raise ConfigurationError(f"{path} is {packed}: save or unpack it as CSV or Parquet")
    return _parquet(path) if path.suffix.lower() in (".parquet", ".pq") else _csv(path, site, findings, header=header)


def table_of(rows: pa.Table, where: str) -> Table:
    """A table in memory."""
    return Table(where, tuple(rows.column_names), rows.num_columns, rows.to_batches(_BATCH_ROWS))


def text_columns(path: Path, site: SiteTable, names: Sequence[str], *, header: bool) -> dict[str, list[str]]:
    """Columns of a file by the names in its first line, every value as text, empty where it is missing.

    Raises: ConfigurationError for a name that is not there, or more than once
    """
    table = open_table(path, site, Findings(), header=header)
    known = table.names or ()
    for name in names:
        if known.count(name) != 1:
            how = "more than once" if name in known else "not"
            raise ConfigurationError(f"{path}: column {name!r} is {how} there; the file has {list(known)[:20]}")
    found: dict[str, list[str]] = {name: [] for name in names}
    for batch in table.batches:
        for name, values in found.items():
            try:
                column = batch.column(known.index(name)).cast(pa.string())
            except pa.ArrowException:
                raise ConfigurationError(f"{path}: column {name!r} holds values that are no text") from None
            values += ["" if value is None else value for value in column.to_pylist()]
    return found


def _parquet(path: Path) -> Table:
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pa.ArrowException, OSError):
        raise ConfigurationError(f"{path} is no readable Parquet file: name text files .csv") from None
    names = tuple(file.schema_arrow.names)
    return Table(str(path), names, len(names), file.iter_batches(_BATCH_ROWS))


def _csv(path: Path, site: SiteTable, findings: Findings, *, header: bool) -> Table:
    first, lines = _first_record(path, site)
    names = tuple(name.strip() for name in first) if header else None
    columns = [str(place) for place in range(len(first))]
    problem = str(path)

    def batches() -> Iterator[pa.RecordBatch]:
        def other_width(_: object) -> str:
            findings.add(Problem.FIELD_COUNT, "", f"expected {len(columns)} fields", rows=1)
            return "skip"

        try:
            yield from pyarrow.csv.open_csv(
                path,
                pyarrow.csv.ReadOptions(
                    use_threads=False,
                    block_size=_BLOCK_BYTES,
                    skip_rows=lines if header else 0,
                    column_names=columns,
                    encoding=site.encoding,
                ),
                pyarrow.csv.ParseOptions(
                    delimiter=site.separator, newlines_in_values=True, invalid_row_handler=other_width
                ),
                pyarrow.csv.ConvertOptions(
                    column_types=dict.fromkeys(columns, pa.string()), null_values=[], strings_can_be_null=False
                ),
            )
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{problem}: {_unreadable(error, site)}") from None

    return Table(str(path), names, len(columns), batches())


def _first_record(path: Path, site: SiteTable) -> tuple[list[str], int]:
    """The fields of the first record and how many lines it takes. Raises: ConfigurationError"""
    encoding = "utf-8-sig" if site.encoding.lower().replace("_", "-") in ("utf-8", "utf8") else site.encoding
    try:
        with path.open(encoding=encoding, newline="") as file:
            head = file.read(_MOST_HEAD_CHARACTERS)
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: {_unreadable(error, site)}") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    if "\0" in head:
        raise ConfigurationError(
            f"{path}: holds zero bytes, so it is no text in {site.encoding}: a spreadsheet saved as CSV is, or say "
            "encoding = 'utf-16' in the site's file (--site)"
        )
    reader = csv.reader(io.StringIO(head), delimiter=site.separator)
    first = next(reader, [])
    if not any(field.strip() for field in first):
        raise ConfigurationError(f"{path}: the file is empty, or its first line is")
    if len(first) == 1:
        _refuse_other_separator(first[0], path)
    return first, reader.line_num


def _refuse_other_separator(line: str, path: Path) -> None:
    for separator, called in _SEPARATORS.items():
        if separator in line:
            raise ConfigurationError(
                f"{path}: the first line is one field with {called} in it: say separator = {separator!r} in the site's "
                "file (--site FILE.toml), and decimal = ',' if its numbers have a decimal comma"
            )


def _unreadable(error: Exception, site: SiteTable) -> str:
    if isinstance(error, UnicodeDecodeError) or "UTF8" in str(error):
        return (
            f"it is not written in {site.encoding}: say encoding = 'latin-1' (or 'cp1252', 'utf-16') in the site's "
            "file (--site FILE.toml), or save it as UTF-8"
        )
    return "it is no table of comma-separated values: a quote that is not closed, or a line of another kind"
