"""Each peer's environment of its own, made once in a folder that is kept: ``python -m venv`` and pip."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocol.errors import ConfigurationError

_INSTALLED: Final = "installed.txt"
_WITHIN_S: Final = 900.0


@dataclass(frozen=True)
class Environment:
    """A virtual environment's folder."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def program(self, name: str) -> str:
        """What ``name`` is called in it."""
        return str(self.folder / "bin" / name)

    @property
    def variables(self) -> dict[str, str]:
        """This process's environment without our packages, its own programs first, one thread a library."""
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        return {**kept, **threads, "PATH": f"{self.folder / 'bin'}{os.pathsep}{kept.get('PATH', '')}"}


def environment(cache: Path, name: str, requirements: tuple[str, ...]) -> Environment:
    """Made unless it is there with just these requirements.

    Raises: ConfigurationError with the last line of what failed
    """
    wanted = "\n".join(requirements)
    folder = cache / f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"
    made = Environment(folder)
    if (folder / _INSTALLED).exists():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    _done(f"python -m venv {folder}", [sys.executable, "-m", "venv", "--clear", str(folder)])
    quiet = ["install", "--quiet", "--disable-pip-version-check"]
    _done(f"pip install {' '.join(requirements)}", [str(made.python), "-m", "pip", *quiet, *requirements])
    (folder / _INSTALLED).write_text(wanted, encoding="utf-8")
    return made


def _done(what: str, command: list[str]) -> None:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_WITHIN_S)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise ConfigurationError(f"{what}: not done in {_WITHIN_S:g} s") from None
    if ended.returncode != 0:
        last = ((ended.stderr or ended.stdout).strip().splitlines() or ["no message"])[-1]
        raise ConfigurationError(f"{what}: {last}")
