"""Public files: what is missing or wrong is said with what to do; --download keeps only the right bytes."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness.datasets import public_data
from harness.datasets.public_data import PublicFile, content, data_folder, fetch_missing
from protocol.errors import ConfigurationError

CONTENT = b"a,b\n1,2\n" * 50
SHA256 = hashlib.sha256(CONTENT).hexdigest()
FILE = PublicFile("set/rows.csv", SHA256, "the example data set", "https://example.org/rows.csv")


def test_the_folder_comes_from_the_option_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOIETY_DATA", raising=False)
    with pytest.raises(ConfigurationError, match="--data, or set MOIETY_DATA"):
        data_folder(None)
    monkeypatch.setenv("MOIETY_DATA", str(tmp_path))
    assert data_folder(None) == tmp_path
    assert data_folder(tmp_path / "other") == tmp_path / "other"


def test_a_missing_file_says_which_from_where_and_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        content(FILE, tmp_path)
    for part in (str(tmp_path / "set" / "rows.csv"), FILE.origin, FILE.url, "--download"):
        assert part in refused.value.detail


def test_another_file_under_the_name_is_refused(tmp_path: Path) -> None:
    packed = replace(FILE, path="set/rows.csv.gz")
    for file in (FILE, packed):
        file.below(tmp_path).parent.mkdir(exist_ok=True)
        file.below(tmp_path).write_bytes(b"something else")
        with pytest.raises(ConfigurationError, match=r"is not the file that is expected.*get it again"):
            content(file, tmp_path)


def test_a_packed_file_is_known_by_what_it_holds(tmp_path: Path) -> None:
    file = replace(FILE, path="rows.csv.gz")
    for level in (1, 9):
        file.below(tmp_path).write_bytes(gzip.compress(CONTENT, level))
        assert content(file, tmp_path) == CONTENT


def test_a_table_is_known_whatever_its_line_ends_and_empty_rows(tmp_path: Path) -> None:
    file = replace(FILE, is_table=True)
    file.below(tmp_path).parent.mkdir()
    for other in (CONTENT, b"\xef\xbb\xbf" + CONTENT.replace(b"\n", b"\r\n") + b",\r\n", CONTENT.rstrip(b"\n")):
        file.below(tmp_path).write_bytes(other)
        assert content(file, tmp_path) == CONTENT


class _Origin(BaseHTTPRequestHandler):
    """Serves the file, packed, something else, and nothing."""

    def do_GET(self) -> None:
        bodies = {"/rows.csv": CONTENT, "/rows.csv.gz": gzip.compress(CONTENT), "/wrong.csv": b"wrong"}
        if self.path == "/moved.csv":
            self.send_response(302)
            self.send_header("Location", "/rows.csv")
            self.end_headers()
            return
        body = bodies.get(self.path)
        self.send_response(404 if body is None else 200)
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def origin() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Origin)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("name", ["rows.csv", "moved.csv", "rows.csv.gz"])
def test_a_missing_file_is_fetched_once(tmp_path: Path, origin: str, name: str) -> None:
    file = replace(FILE, path=f"set/{name}", url=f"{origin}/{name}")
    told: list[str] = []
    fetch_missing([file], tmp_path, told.append)
    assert content(file, tmp_path) == CONTENT
    fetch_missing([replace(file, url="http://nowhere.invalid/")], tmp_path, told.append)
    assert told == [f"fetching {file.url}"]


def test_a_wrong_file_is_not_kept(tmp_path: Path, origin: str) -> None:
    file = replace(FILE, url=f"{origin}/wrong.csv")
    with pytest.raises(ConfigurationError, match=r"expected [0-9a-f]{64}; nothing was kept: get rows\.csv"):
        fetch_missing([file], tmp_path, lambda text: None)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_fetched_says_where_to_put_it(
    tmp_path: Path, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match=r"answers 404; .*put it at set/rows\.csv in the data folder"):
        fetch_missing([replace(FILE, url=f"{origin}/none.csv")], tmp_path, lambda text: None)
    monkeypatch.setattr(public_data, "LARGEST_BYTES", 100)
    with pytest.raises(ConfigurationError, match="longer than 100 bytes"):
        fetch_missing([replace(FILE, url=f"{origin}/rows.csv")], tmp_path, lambda text: None)


def test_a_file_that_its_origin_has_in_another_form_is_not_asked_for(tmp_path: Path) -> None:
    repacked = replace(FILE, is_repacked=True)
    with pytest.raises(ConfigurationError, match=r"cannot be fetched: .* holds it in another form; make the example"):
        fetch_missing([repacked], tmp_path, lambda text: None)
    with pytest.raises(ConfigurationError) as refused:
        content(repacked, tmp_path)
    assert FILE.url in refused.value.detail
    assert "--download" not in refused.value.detail


def test_an_origin_that_is_not_reachable_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"http://127\.0\.0\.1:9/rows\.csv cannot be fetched: "):
        fetch_missing([replace(FILE, url="http://127.0.0.1:9/rows.csv")], tmp_path, lambda text: None)
