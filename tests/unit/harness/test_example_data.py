"""Data for a first try: folders as an agent reads them, with names, so that agents compare from the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.learning.data import load_folder
from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.demo.example_data import main


def test_every_folder_is_named_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [tmp_path / "h0", tmp_path / "h1"]
    assert main([str(folder) for folder in folders]) == 0
    said, federation = capsys.readouterr().out, breast_cancer_five_hospitals(0)
    for folder, site in zip(folders, federation.sites, strict=False):
        data = load_folder(folder, (30,), 2)
        assert data.names == federation.names
        assert f"{folder}: {len(site.train)} training and {len(site.test)} test examples" in said


def test_there_are_five_hospitals(tmp_path: Path) -> None:
    assert main([]) == 2
    assert main([str(tmp_path / str(n)) for n in range(6)]) == 2
