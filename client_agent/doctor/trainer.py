"""The site's own trainer, looked at before a study is there: interpreter, framework, program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Final

from client_agent.learning.foreign.trainer import PROGRAMS, handed_on
from client_agent.trainer_settings import TrainerSettings
from host.doctor import Finding, failed, ok

_CHECK: Final = "trainer"
_LOADS_WITHIN_S: Final = 60.0
_INSTALLED_BY: Final = {"flower": "flwr", "nvflare": "nvflare", "python": "numpy"}


def look_at_trainer(settings: TrainerSettings) -> Finding:
    """Whether a round could be begun; that the code trains the study's model is tried when a study is there."""
    for key, path in (("python", settings.python), ("program", settings.program)):
        if path is None or not path.is_file():
            return failed(_CHECK, f"key 'trainer.{key}': {path} is no file", "correct the path, or install it there")
    within_s = min(settings.timeout_s, _LOADS_WITHIN_S)
    try:
        said = _asked(settings, within_s)
    except OSError as error:
        return failed(
            _CHECK, f"key 'trainer.python': {settings.python}: {error.strerror}", "name an interpreter of Python"
        )
    except subprocess.TimeoutExpired:
        return failed(
            _CHECK, f"{settings.program} was not loaded within {within_s:g} s", "train in the function, not at import"
        )
    if "found" not in said:
        install = f"{settings.python} -m pip install {_INSTALLED_BY[settings.kind or 'python']}"
        fix = install if said["wrong"].startswith("ModuleNotFoundError") else "mend it; it is this site's own code"
        return failed(_CHECK, f"{settings.program} ({settings.kind}): {said['wrong']}", fix)
    when = "whether it trains a study's model is tried when one is there"
    return ok(_CHECK, f"{settings.program} ({settings.kind}): {said['found']}; {when}")


def _asked(settings: TrainerSettings, within_s: float) -> dict[str, str]:
    """What its interpreter says. Raises: OSError, subprocess.TimeoutExpired"""
    words = (str(settings.kind), os.path.realpath(Path(settings.program or "")), settings.name)
    process = subprocess.Popen(  # noqa: S603 - the site's own program
        (str(settings.python), str(PROGRAMS / "look.py"), *words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=handed_on(),
        start_new_session=True,
        text=True,
    )
    try:
        printed = process.communicate(timeout=within_s)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    try:
        found: dict[str, str] = json.loads(printed.splitlines()[-1])
        return found if found.keys() & {"found", "wrong"} else {"wrong": f"ended with exit code {process.returncode}"}
    except (ValueError, IndexError, AttributeError):
        return {"wrong": f"ended with exit code {process.returncode} before it said anything"}
