"""A table in batches of rows, every value as text or null: from a CSV file, a Parquet file or record batches.

Whatever the types of a file or database are, columns are read by the schema's (client_agent.data.values), so that the
same table gives the same examples in every form. Names and texts have the form in which they are compared.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, TextIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from client_agent.data.findings import Findings
from client_agent.data.site_table import SEPARATOR, SiteTable
from host.files import MARK_BYTES, marked_encoding, why_unreadable
from protocol.errors import ConfigurationError
from protocol.text import INVISIBLE, comparable

_BATCH_FIELDS: Final = 2**20
_BATCH_ROWS: Final = 2**16
_BLOCK_BYTES: Final = 2**20
_MOST_LINE_CHARACTERS: Final = 2**26
_PARQUET: Final = b"PAR1"
_PACKED: Final = {
    b"PK\x03\x04": "a spreadsheet or another archive",
    b"\xd0\xcf\x11\xe0": "a spreadsheet or another document",
    b"\x1f\x8b": "compressed",
}
_MARKUP: Final = re.compile(rb"\s*<(?:!doctype|html|head|table|\?xml)\b", re.IGNORECASE)
"""The beginning of the web pages and XML that programs save under the name of a workbook."""
_NO_TEXT: Final = re.compile(rb"[\x01-\x08\x0e-\x19\x1c-\x1f\x7f]")
"""Bytes of no table in any encoding of one byte a character."""
_SEPARATORS: Final = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}
_SEPARATOR_LINE: Final = re.compile(rf'^"?sep=(?P<said>\\t|{SEPARATOR})"?(?P<again>[,;|\t])*\s*$', re.IGNORECASE)
"""The first line of what Excel and laboratory devices write; ``again`` where it was saved as a row of another table."""
_BYTE_ORDER_MARK: Final = "\ufeff"


@dataclass(frozen=True)
class Table:
    """``names`` is the first line's, None where the file has none. ``batches`` can be gone through once.

    ``query``: the study's, where that gave the table and its columns their names. ``line``: of a text file's
    names, or 0.
    """

    where: str
    names: tuple[str, ...] | None
    width: int
    batches: Iterable[pa.RecordBatch]
    query: str = ""
    line: int = 0

    def __post_init__(self) -> None:
        if self.names is not None:
            object.__setattr__(self, "names", tuple(map(comparable, self.names)))


class _Record(NamedTuple):
    """The line that it begins in, and its fields: none of a blank line."""

    line: int
    fields: list[str]


def open_table(path: Path, site: SiteTable, findings: Findings, *, header: bool) -> Table:
    """A file by its ending: Parquet, or text with separators. Raises: ConfigurationError that says what to do"""
    if not path.is_file():
        raise ConfigurationError(f"{path} is {'a folder' if path.is_dir() else 'missing'}: give a CSV or Parquet file")
    try:
        with path.open("rb") as file:
            first = file.read(64)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {why_unreadable(path, error)}") from None
    begins = first[:MARK_BYTES]
    packed = next((called for magic, called in _PACKED.items() if begins.startswith(magic)), None)
    if packed is None and _MARKUP.match(first.removeprefix(codecs.BOM_UTF8)):
        packed = "a web page or XML"
    if packed is not None:
        raise ConfigurationError(f"{path} is {packed}: save or unpack it as CSV or Parquet")
    if begins == _PARQUET or path.suffix.lower() in (".parquet", ".pq"):
        return _parquet(path)
    return _csv(path, site, _encoding(path, begins, site), findings, header=header)


def texts_of(array: pa.Array, name: str) -> pa.Array:
    """A column whose texts are comparable; numbers and times as they are. Raises: ConfigurationError for other types"""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    try:
        texts = pc.cast(array if is_text else array[:0], pa.string())
    except pa.ArrowException:
        texts = None
    if texts is None or pa.types.is_nested(kind) or "binary" in str(kind):
        raise ConfigurationError(f"column {name!r} is of type {kind}: make it numbers, texts or times")
    if not is_text:
        return array
    texts = pc.utf8_trim(texts, characters=INVISIBLE)
    plain = pc.all(pc.string_is_ascii(texts)).as_py()
    return texts if plain in (True, None) else pc.utf8_normalize(texts, form="NFC")


def text_columns(path: Path, site: SiteTable, names: Sequence[str], *, header: bool) -> dict[str, list[str]]:
    """Columns of a file by the names in its first line, every value as text, empty where it is missing.

    Raises: ConfigurationError for a name that is not there, or more than once
    """
    table = open_table(path, site, Findings(), header=header)
    known = table.names or ()
    places = dict[str, int]()
    for name in names:
        if known.count(comparable(name)) != 1:
            how = "more than once" if comparable(name) in known else "not"
            raise ConfigurationError(f"{path}: column {name!r} is {how} there; the file has {list(known)[:20]}")
        places[name] = known.index(comparable(name))
    found: dict[str, list[str]] = {name: [] for name in names}
    for batch in table.batches:
        for name, values in found.items():
            texts = texts_of(batch.column(places[name]), name).cast(pa.string())
            values += ["" if value is None else value for value in texts.to_pylist()]
    return found


def _parquet(path: Path) -> Table:
    def batches(file: pyarrow.parquet.ParquetFile) -> Iterator[pa.RecordBatch]:
        try:
            yield from file.iter_batches(_BATCH_ROWS)
        except (pa.ArrowException, OSError):
            raise ConfigurationError(f"{path} is damaged: its rows cannot be read; fetch or save it again") from None

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pa.ArrowException, OSError):
        raise ConfigurationError(f"{path} is no readable Parquet file: name text files .csv") from None
    names = tuple(file.schema_arrow.names)
    return Table(str(path), names, len(names), batches(file))


def _csv(path: Path, site: SiteTable, encoding: str, findings: Findings, *, header: bool) -> Table:
    records = _records(path, site, encoding)
    begins = list[_Record]()
    for record in records:  # from the first that is not blank to the second one
        begins += [record] if record.fields or begins else []
        if record.fields and len(begins) > 1:
            break
    if not begins:
        below = f" below skip_lines = {site.skip_lines}" if site.skip_lines else ""
        raise ConfigurationError(f"{path}: the file is empty{below}, or all its lines are")
    first, second = begins[0], begins[-1]
    if len(first.fields) == 1:
        _refuse_other_separator(path, site, first, second)
    if header:
        _refuse_title(path, first, second)
    rows = (one.fields for one in chain(begins[1:] if header else begins, records))
    width = len(first.fields)
    names, batches = tuple(first.fields) if header else None, _batches(path, width, rows, findings)
    return Table(str(path), names, width, batches, line=first.line)


def _batches(path: Path, width: int, rows: Iterable[list[str]], findings: Findings) -> Iterator[pa.RecordBatch]:
    most = max(1, min(_BATCH_ROWS, _BATCH_FIELDS // width))
    columns = [str(place) for place in range(width)]

    def batch(read: Sequence[Sequence[str]]) -> pa.RecordBatch:
        try:
            arrays = [pa.array(values, pa.string()) for values in zip(*read, strict=True)]
        except UnicodeError:
            raise ConfigurationError(f"{path}: holds characters that are no text: save it as UTF-8") from None
        return pa.RecordBatch.from_arrays(arrays, columns)

    number, blank, read = 0, 0, list[list[str]]()
    for fields in rows:
        if not fields:
            blank += width == 1  # of one column it may be a value that is missing, unless nothing follows
            continue
        for _ in range(blank):
            number += 1
            findings.skip_row(number, f"expected {width} fields")
        number, blank = number + 1, 0
        if len(fields) == width:
            read.append(fields)
        else:
            findings.skip_row(number, f"expected {width} fields")
        if len(read) == most:
            yield batch(read)
            read = []
    if read:
        yield batch(read)


def _encoding(path: Path, begins: bytes, site: SiteTable) -> str:
    """The site's encoding, or the form of it that takes off the byte-order mark. Raises: ConfigurationError"""
    marked = marked_encoding(begins)
    if not marked:
        if _is_of_single_bytes(site.encoding) and _is_utf_8(path):
            raise ConfigurationError(
                f"{path}: it is written in utf-8, not in {site.encoding}: say encoding = 'utf-8' in the site's file "
                "(--site FILE.toml)"
            )
        return site.encoding
    if not codecs.lookup(site.encoding).name.startswith(marked):
        raise ConfigurationError(
            f"{path}: it is not written in {site.encoding} but in {marked}, as its byte-order mark says: say encoding "
            f"= {marked!r} in the site's file (--site FILE.toml)"
        )
    return "utf-8-sig" if marked == "utf-8" else marked


def _is_of_single_bytes(encoding: str) -> bool:
    """Tell whether each byte is a character, so that text in UTF-8 is read without an error, as other letters."""
    high = bytes(range(128, 256))
    return not codecs.lookup(encoding).name.startswith("utf") and len(high.decode(encoding, "replace")) == len(high)


def _is_utf_8(path: Path) -> bool:
    """Tell whether a file has bytes beyond ASCII, and all of them are UTF-8. Raises: ConfigurationError"""
    decoder, ascii_only = codecs.getincrementaldecoder("utf-8")(), True
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                ascii_only &= block.isascii()
                decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {why_unreadable(path, error)}") from None
    return not ascii_only


def _records(path: Path, site: SiteTable, encoding: str) -> Iterator[_Record]:
    """Each record below what stands above the names.

    Raises: ConfigurationError that names the line, without what stands there
    """
    above, begun = 0, 1
    try:
        with path.open(encoding=encoding, newline="") as file:
            lines = _lines(file, path)
            separator, rest, above = _below(lines, site, path)
            reader = csv.reader(chain(rest, lines), delimiter=separator, strict=True)
            for fields in reader:
                yield _Record(above + begun, [] if len(fields) == 1 and fields[0].isspace() else fields)
                begun = reader.line_num + 1
    except csv.Error:
        raise ConfigurationError(
            f"{path}: line {above + begun} cannot be read as fields: a quote that begins there is not closed, has more "
            f"text behind it, or the field has more than {csv.field_size_limit()} characters"
        ) from None
    except UnicodeError as error:
        raise ConfigurationError(f"{path}: {_unreadable(error, site)}") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {why_unreadable(path, error)}") from None


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    number = 0
    while line := file.readline(_MOST_LINE_CHARACTERS):
        number += 1
        if "\0" in line:
            raise ConfigurationError(
                f"{path}: line {number} holds zero bytes, so it is no text in {file.encoding}: say encoding = "
                "'utf-16-le' in the site's file (--site FILE.toml) if it is UTF-16, or save it as UTF-8"
            )
        if len(line) == _MOST_LINE_CHARACTERS:
            raise ConfigurationError(f"{path}: line {number} has more than {len(line)} characters: is it a table?")
        yield line.lstrip(_BYTE_ORDER_MARK) if number == 1 else line


def _below(lines: Iterator[str], site: SiteTable, path: Path) -> tuple[str, list[str], int]:
    """The separator, the first line below ``skip_lines`` and a line ``sep=``, and how many lines stand above it."""
    separator = site.separator
    above = 0
    for line in lines:
        said = _SEPARATOR_LINE.match(line)
        if said is not None:
            separator = (said["again"] or said["said"]).replace(r"\t", "\t")
            if "separator" in site.model_fields_set and separator != site.separator:
                raise ConfigurationError(
                    f"{path}: line {above + 1} says sep={said['said']} and the site's file (--site) says "
                    f"separator = {site.separator!r}: one of them is wrong"
                )
        elif above >= site.skip_lines:
            return separator, [line], above
        above += 1
    return separator, [], above


def _refuse_other_separator(path: Path, site: SiteTable, first: _Record, second: _Record) -> None:
    line, following = first.fields[0], site.separator.join(second.fields)
    for separator, called in _SEPARATORS.items():
        if separator in line and separator in following and separator != site.decimal:
            decimal = "" if separator == "," else ", and decimal = ',' if its numbers have a decimal comma"
            raise ConfigurationError(
                f"{path}: line {first.line} is one field with {called} in it: say separator = {separator!r} in the "
                f"site's file (--site FILE.toml){decimal}"
            )


def _refuse_title(path: Path, first: _Record, second: _Record) -> None:
    """A line of one field above wider ones is no line of names; an index without a name leaves the first one empty."""
    given = [place for place, field in enumerate(first.fields) if comparable(field)]
    if not given:
        raise ConfigurationError(
            f"{path}: line {first.line} has no names: if they stand further down, say in the site's file (--site "
            "FILE.toml) how many lines stand above them, skip_lines = ..."
        )
    if given == [0] and len(second.fields) > 1:
        raise ConfigurationError(
            f"{path}: line {first.line} has one field and line {second.line} has more: if it is a title above the "
            f"names, say skip_lines = {second.line - 1} in the site's file (--site FILE.toml)"
        )


def _unreadable(error: UnicodeError, site: SiteTable) -> str:
    if isinstance(error, UnicodeDecodeError):
        if _NO_TEXT.search(error.object):
            return (
                "it holds bytes that stand in no text: give a CSV or Parquet file, or say its encoding in the site's "
                "file (--site FILE.toml), such as 'utf-16-le'"
            )
        return (
            f"it is not written in {site.encoding}: say encoding = 'latin-1' (or 'cp1252', 'utf-16') in the site's "
            "file (--site FILE.toml), or save it as UTF-8"
        )
    return (
        f"it is not written in {site.encoding}, or has no byte-order mark: say encoding = 'utf-16-le' or 'utf-16-be' "
        "in the site's file (--site FILE.toml), or save it as UTF-8"
    )
