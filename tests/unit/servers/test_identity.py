"""A server starts on its own folder, database and addresses, and on no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.engine.parties import OPERATOR_NAMES
from host.folder_lock import one_process
from protocol.errors import ConfigurationError
from protocol.sharing import Side
from servers.server import open_server
from servers.serving import serve
from servers.settings import ServerSettings, load_settings
from tests.kit.processes import Federation, prepare_servers

SITES = ("hospital-0", "hospital-1", "hospital-2", "hospital-3")


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return prepare_servers(tmp_path / "first", SITES)


@pytest.fixture
def settings(federation: Federation) -> dict[Side, ServerSettings]:
    return {side: load_settings(federation.servers[side].config) for side in Side}


def opens(settings: ServerSettings) -> None:
    server = open_server(settings)
    server.store.close()
    server.ckks.close()


def test_b_does_not_run_on_a_s_folder(settings: dict[Side, ServerSettings]) -> None:
    opens(settings[Side.A])
    opens(settings[Side.A])
    wrong = settings[Side.B].model_copy(update={"data_dir": settings[Side.A].data_dir})
    with pytest.raises(ConfigurationError, match=r"data belongs to server a 'operator-a'.*this is server b") as refused:
        open_server(wrong)
    assert "folder and a database of its own" in refused.value.detail


def test_b_does_not_run_on_a_s_database(settings: dict[Side, ServerSettings]) -> None:
    opens(settings[Side.A])
    wrong = settings[Side.B].model_copy(update={"database_url": settings[Side.A].database})
    with pytest.raises(ConfigurationError, match=r"the database belongs to server a 'operator-a'.*this is server b"):
        open_server(wrong)


def test_new_keys_do_not_run_on_the_folder_of_old_ones(settings: dict[Side, ServerSettings], tmp_path: Path) -> None:
    opens(settings[Side.A])
    again = prepare_servers(tmp_path / "again", SITES)
    wrong = load_settings(again.servers[Side.A].config).model_copy(update={"data_dir": settings[Side.A].data_dir})
    with pytest.raises(
        ConfigurationError, match=r"belongs to server a 'operator-a' with key .* without a change of the roster, too"
    ):
        open_server(wrong)


@pytest.mark.parametrize("key", ["public_url", "peer_url"])
def test_an_address_that_the_roster_does_not_have_is_refused(
    settings: dict[Side, ServerSettings], federation: Federation, key: str
) -> None:
    own = settings[Side.A]
    expected = federation.url(Side.A if key == "public_url" else Side.B)
    name = OPERATOR_NAMES[Side.A if key == "public_url" else Side.B]
    with pytest.raises(ConfigurationError, match=f"key '{key}': found 'https://elsewhere.example'") as refused:
        open_server(own.model_copy(update={key: "https://elsewhere.example"}))
    assert f"the roster has '{expected}' for '{name}'" in refused.value.detail


@pytest.fixture
def held(settings: dict[Side, ServerSettings]) -> Iterator[ServerSettings]:
    own = settings[Side.A]
    with one_process(own.data_dir, "data_dir", "the server of side 'a'"):
        yield own


def test_a_second_server_on_a_folder_is_refused_before_it_touches_anything(held: ServerSettings) -> None:
    shares = held.data_dir / "shares"
    shares.mkdir()
    (shares / "of-the-first").write_bytes(b"not yet in a row")
    with pytest.raises(ConfigurationError, match=r"is in use by the server of side 'a', process \d+ on"):
        serve(held)
    assert (shares / "of-the-first").exists()
