"""Small public files in the real formats, with the loaders' checksums set to theirs."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from harness.datasets import mnist, titanic
from harness.datasets.public_data import PublicFile


def put(folder: Path, file: PublicFile, content: bytes) -> PublicFile:
    """Write ``content`` where the file belongs; returns the file with its checksum."""
    path = file.below(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if file.is_packed else content)
    return replace(file, sha256=hashlib.sha256(content).hexdigest())


def replace_file(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, folder: Path, content: bytes) -> None:
    monkeypatch.setattr(module, name, put(folder, getattr(module, name), content))


def idx(values: np.ndarray) -> bytes:
    """An IDX file of bytes; loaders skip its header."""
    return bytes(16 if values.ndim == 3 else 8) + values.astype(np.uint8).tobytes()


def small_mnist(monkeypatch: pytest.MonkeyPatch, folder: Path, per_digit: int, test_per_digit: int) -> None:
    """``per_digit`` images of every digit, all pixels of which are the digit's number."""
    for images, labels, count in (
        ("TRAIN_IMAGES", "TRAIN_LABELS", per_digit),
        ("TEST_IMAGES", "TEST_LABELS", test_per_digit),
    ):
        y = np.tile(np.arange(10), count)
        replace_file(monkeypatch, mnist, images, folder, idx(np.broadcast_to(y[:, None, None], (len(y), 28, 28))))
        replace_file(monkeypatch, mnist, labels, folder, idx(y))


def small_titanic(monkeypatch: pytest.MonkeyPatch, folder: Path, rows: list[str]) -> None:
    """A passenger list; columns as in titanic3, the unused ones left out."""
    text = "\n".join(["pclass,survived,sex,age,sibsp,parch,fare,embarked", *rows]) + "\n"
    replace_file(monkeypatch, titanic, "TITANIC3", folder, text.encode())
