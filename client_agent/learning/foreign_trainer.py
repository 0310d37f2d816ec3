"""One round of the site's own trainer: files in, a process with a deadline, files out.

What the process may do is what the agent may do: it is the site's own code, chosen by the site. What comes back is
believed to be numbers of the study's shapes and nothing else; everything that is not ends the round here, with a reason
that tells the requester nothing of what the program printed, which stays in ``trainer.log``.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.learning.settings import TrainerSettings
from client_agent.trainer_programs.round_task import read_tensors, write_tensors
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.messages.control import Study

LOG_BYTES: Final = 2**20
"""The bound of each of the two files."""
_READ_BYTES: Final = 2**16
_LOOKS_EVERY_S: Final = 0.1


def put_aside(path: Path) -> Path:
    """Return the path of the file before this one."""
    return path.with_name(f"{path.name}.1")


@contextmanager
def bounded_log(path: Path) -> Iterator[int]:
    """A descriptor for a program to print to, until the block ends; what was said before is forgotten.

    A process that escaped and still holds it afterwards writes to nobody.
    """
    put_aside(path).unlink(missing_ok=True)
    path.write_bytes(b"")
    read, write = os.pipe()
    over = threading.Event()
    copying = threading.Thread(target=_copy, args=(read, path, over), daemon=True)
    copying.start()
    try:
        yield write
    finally:
        os.close(write)
        over.set()
        copying.join()
        os.close(read)


def _copy(read: int, path: Path, over: threading.Event) -> None:
    """Until nobody holds the other end, or it is over and nothing waits."""
    while True:
        ending = over.is_set()
        if select.select([read], [], [], _LOOKS_EVERY_S)[0]:
            said = os.read(read, _READ_BYTES)
            if not said:
                return
            _append(path, said)
        elif ending:
            return


def _append(path: Path, said: bytes) -> None:
    """A disk that is full loses the words, not the round."""
    try:
        if path.stat().st_size + len(said) > LOG_BYTES:
            path.replace(put_aside(path))
        with path.open("ab") as log:
            log.write(said)
    except OSError:
        return


Vector = NDArray[np.float32]
LOG_FILE: Final = "trainer.log"
_FOLDER: Final = "trainer"
PROGRAMS: Final = Path(__file__).parents[1] / "trainer_programs"
_OURS: Final = ("MOIETY_", "PYTHON")


@dataclass(frozen=True)
class ForeignTrainer:
    """``state`` is the study's folder at this site; the program's working folder is in it and is kept."""

    study: Study
    settings: TrainerSettings
    data: Path
    state: Path

    def __post_init__(self) -> None:
        """Raises: ConfigurationError, when interpreter or program are not there"""
        for key, path in (("python", self.settings.python), ("program", self.settings.program)):
            if path is None or not path.is_file():
                raise ConfigurationError(f"key 'trainer.{key}': {path} is no file")

    def train(self, model: Vector, round_number: int) -> Vector:
        """The model after the trainer's round, float32[D] like the one before it.

        Raises: UnusableUpdate, for a program that fails, hangs, or gives anything but finite numbers of those shapes
        """
        folder = self.state / _FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        after = folder / "after.safetensors"
        after.unlink(missing_ok=True)
        write_tensors(folder / "before.safetensors", self._layered(model))
        (folder / "task.json").write_text(json.dumps(self._task(round_number)), encoding="utf-8")
        self._run(folder)
        return self._taken(after)

    def _run(self, folder: Path) -> None:
        runner = PROGRAMS / f"{self.settings.kind}_round.py"
        with bounded_log(folder / LOG_FILE) as log:
            process = subprocess.Popen(  # noqa: S603 - the site's own program
                [str(self.settings.python), str(runner), str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=handed_on(),
                start_new_session=True,
            )
            try:
                code = process.wait(self.study.round_deadline_s)  # later it could not contribute
            except subprocess.TimeoutExpired:
                raise UnusableUpdate(
                    f"{self._name} did not end within the {self.study.round_deadline_s:g} s of a round and was killed"
                ) from None
            finally:
                _kill_group(process)
        if code != 0:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise UnusableUpdate(f"{self._name} ended with {how}: this site's {LOG_FILE} has its last words")

    def _taken(self, after: Path) -> Vector:
        shapes = {layer.name: layer.shape for layer in self.study.model.layers}
        try:
            found = read_tensors(after, shapes)
        except FileNotFoundError:
            raise UnusableUpdate(f"{self._name} ended without a trained model") from None
        except (ValueError, OSError, TypeError, KeyError) as wrong:
            raise UnusableUpdate(f"{self._name} gave no model of the study's: {wrong}") from None
        for name, array in found.items():
            if not np.isfinite(array).all():
                raise UnusableUpdate(f"{self._name} gave NaN or infinite values in layer {name!r}")
        return np.concatenate([array.ravel() for array in found.values()])

    def _layered(self, model: Vector) -> dict[str, Vector]:
        arrays, start = {}, 0
        for layer in self.study.model.layers:
            size = int(np.prod(layer.shape, dtype=np.int64))
            arrays[layer.name] = model[start : start + size].reshape(layer.shape)
            start += size
        return arrays

    def _task(self, round_number: int) -> dict[str, object]:
        settings, training = self.settings, self.study.training
        return {
            "round": round_number,
            "rounds": self.study.rounds,
            "program": os.path.realpath(Path(settings.program or "")),
            "tensors": settings.tensors,
            "data": os.path.realpath(self.data),
            "layers": [{"name": layer.name, "shape": list(layer.shape)} for layer in self.study.model.layers],
            "training": {
                "local_learning_rate": training.local_learning_rate,
                "epochs": training.epochs,
                "batch_size": training.batch_size,
            },
            "config": settings.config,
            "arguments": [str(value) for value in settings.config.values()],
        }

    @property
    def _name(self) -> str:
        return f"the site's trainer ({self.settings.kind})"


def handed_on() -> dict[str, str]:
    """The environment, without what is the agent's."""
    return {key: value for key, value in os.environ.items() if not key.startswith(_OURS)}


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
