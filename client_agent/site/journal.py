"""The site's durable state of one study: what must survive a kill -9 (docs/protocol.md 3, 7, 9).

    studies/NAME/study.json         the signed study
                 site.json          SiteState: model version, policy memory, the sites' key, class counts
                 refusal.sealed     why this site takes no part
                 requester.json     the requester's own state
                 model-000003.safetensors
                 rounds/000004/     decision, encoded update, mail, queries, release set of that round
                 rounds/000004/noised.f32    the one update of that round, in a study with noise
                 rounds/000004/attempt-01/   sealed shares and their record: resent, never re-made
                 metrics.jsonl      one line per round
                 stopped.txt        why the agent stopped this study until a person mends something
                 withdrawn          the study was cancelled before a server had it
                 left.txt           why a person took this site out of the study
                 paused.txt         why a person paused it here; gone once it is resumed
                 scores.json        the last model's metrics on this site's test part, with intervals
                 awaited.json       the sites that a requester's study waits for, while it waits
    at the requester:
                 finish.json            the study's [finish], from the outbox
                 finished.safetensors   the model that this site has finished alone
                 finished.json          how; without it the finish is done again, to the same bits
                 shared_scores.json     the shared model's metrics, as scores.json has those of the finished one
                 federated.json, federated-000007.safetensors   the last model of the shared part, before going on alone
                 best.json, best-000004.safetensors   of the shared part's, that of least loss on its validation part

Every file is written beside its name, synced and renamed. A state file is replaced after what it points to is there;
the facts of a model (.json) are written last and say which file of values counts.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from client_agent.learning.study_file import FinishTable
from client_agent.site.events import Shown
from client_agent.site.failpoints import Point
from client_agent.site.letters import CountedClasses
from host.failpoints import Failpoints
from host.files import new_folder, sync_folder, write_durably
from host.frozen import Frozen
from protocol.errors import ConfigurationError
from protocol.messages.control import Signed, StudyEnd
from protocol.policy.memory import SiteMemory

B = TypeVar("B", bound=BaseModel)
FINAL_SCORES: Final = "scores.json"
STOPPED: Final = "stopped.txt"
_WITHDRAWN: Final = "withdrawn"
_LEFT: Final = "left.txt"
_PAUSED: Final = "paused.txt"
_MODELS_KEPT: Final = 2
_ROUNDS_KEPT: Final = 2
MODEL: Final = "model"
_MOMENTS: Final = "moments"


class SiteState(Frozen, hide_input_in_errors=True):
    """The state of this site. ``model_version`` is None until the requester's welcome came.

    ``counted`` are the class counts of all sites together, once they were released, for a rule that uses them.
    ``summarised`` is the round whose summary this site opened. ``ranked_before`` is the first round that this site saw
    announced as something else than a ranking or a summary, in a study that has either, whether it took part or not.
    ``discarded`` are the rounds whose sum of ciphertexts was none that the released sites' updates can make.
    ``altered`` are the rounds whose sum of shares had wrong tags although both servers' checks said otherwise.
    ``opened_round`` is the last one whose sum of updates this site opened,
    whether it was applied or discarded. ``ended_by`` is what ended the study,
    ``refused`` that this site takes no part.
    """

    study_digest: str
    training_seed: int = Field(repr=False)
    site_key: str | None = Field(default=None, repr=False)
    ckks_key_seed: str | None = Field(default=None, repr=False)
    model_version: int | None = None
    memory: SiteMemory = SiteMemory()
    counted: CountedClasses | None = None
    summarised: int | None = None
    ranked_before: int | None = None
    discarded: tuple[int, ...] = ()
    altered: tuple[int, ...] = ()
    last_recorded_round: int = 0
    opened_round: int = 0
    finished: str | None = None
    ended_by: Signed[StudyEnd] | None = None
    refused: bool = False

    @property
    def over(self) -> bool:
        """True if this site's part is over: the requester's signed end is here, or this site itself refused.

        ``finished`` alone, as an unsigned view once made it, ends nothing: such a site goes on.
        """
        return self.finished is not None and (self.ended_by is not None or self.refused)


class StudyJournal:
    """Files of one study below the agent's state folder."""

    def __init__(self, state_dir: Path, study: str, failpoints: Failpoints | None = None) -> None:
        self._failpoints = failpoints or Failpoints()
        self.folder = new_folder(state_dir / "studies" / study)

    def reach(self, point: Point) -> None:
        """One of the places at which a test may kill this agent."""
        self._failpoints.reach(point)

    def round_folder(self, round_number: int) -> Path:
        return new_folder(self.folder / "rounds" / f"{round_number:06d}")

    def attempt_folder(self, round_number: int, attempt: int) -> Path:
        return new_folder(self.round_folder(round_number) / f"attempt-{attempt:02d}")

    def write(self, path: Path, content: BaseModel, around: tuple[Point, Point] | None = None) -> None:
        """``around``: the failpoints before and after it."""
        if around is not None:
            self.reach(around[0])
        write_durably(path, content.model_dump_json().encode())
        if around is not None:
            self.reach(around[1])

    def read(self, path: Path, kind: type[B]) -> B | None:
        """The content of a state file, None when there is none."""
        if not path.exists():
            return None
        try:
            return kind.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise ConfigurationError(
                f"{path}: not a state file of this version ({error.error_count()} fields are wrong); "
                "restore it from a backup or leave the study"
            ) from None

    def once(self, path: Path, kind: type[B], make: Callable[[], B], around: tuple[Point, Point] | None = None) -> B:
        """The content of a state file, made and written the first time."""
        known = self.read(path, kind)
        if known is None:
            known = make()
            self.write(path, known, around)
        return known

    def stopped(self, why: str | None) -> None:
        """Note for people why the agent stopped; None once it begins again."""
        if why is None:
            (self.folder / STOPPED).unlink(missing_ok=True)
        else:
            write_durably(self.folder / STOPPED, why.encode())

    @property
    def stopped_because(self) -> str:
        return self._said(STOPPED) or ""

    def withdraw(self) -> None:
        """The study was cancelled before a server had it: no agent begins it any more."""
        write_durably(self.folder / _WITHDRAWN, b"")

    @property
    def is_withdrawn(self) -> bool:
        return (self.folder / _WITHDRAWN).exists()

    def leave(self, reason: str) -> None:
        """A person takes this site out of the study: its agent contributes to no further round."""
        write_durably(self.folder / _LEFT, reason.encode())

    @property
    def left(self) -> str | None:
        return self._said(_LEFT)

    def pause(self, reason: str) -> None:
        """A person has this site neither train nor contribute until it is resumed."""
        write_durably(self.folder / _PAUSED, reason.encode())

    def resume(self) -> None:
        (self.folder / _PAUSED).unlink(missing_ok=True)
        sync_folder(self.folder)

    @property
    def paused(self) -> str | None:
        return self._said(_PAUSED)

    def _said(self, name: str) -> str | None:
        try:
            return (self.folder / name).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None

    def site_state(self) -> SiteState | None:
        return self.read(self.folder / "site.json", SiteState)

    def write_site_state(self, state: SiteState) -> None:
        self.write(self.folder / "site.json", state)

    def save_model(
        self, version: int, kept: NDArray[np.float32], study_digest: str, dimension: int | None = None
    ) -> None:
        """Checkpoint as safetensors; older ones than the last two go.

        The first ``dimension`` numbers (None: all) are the model, what follows is the server optimiser's moments.
        """
        metadata = {"moiety": f"study {study_digest}, model {version}"}  # one key: the order of several is not fixed
        tensors = {MODEL: kept[:dimension]}
        if dimension is not None and kept.size > dimension:
            tensors[_MOMENTS] = kept[dimension:]
        write_tensors(self._model_path(version), tensors, metadata)
        for path in sorted(self.folder.glob("model-*.safetensors"))[:-_MODELS_KEPT]:
            path.unlink()

    def load_model(self, version: int) -> NDArray[np.float32]:
        """The model alone: what a person exports."""
        return read_tensors(self._model_path(version))[MODEL]

    def load_kept(self, version: int) -> NDArray[np.float32]:
        """The model and the moments behind it, as it was saved."""
        tensors = read_tensors(self._model_path(version))
        moments = tensors.get(_MOMENTS)
        return tensors[MODEL] if moments is None else np.concatenate([tensors[MODEL], moments])

    def forget_rounds_before(self, round_number: int) -> None:
        """Delete shares and mail of rounds that are over for good."""
        rounds = self.folder / "rounds"
        for path in sorted(rounds.glob("*")) if rounds.is_dir() else []:
            if int(path.name) <= round_number - _ROUNDS_KEPT:
                shutil.rmtree(path)

    def _model_path(self, version: int) -> Path:
        return self.folder / f"model-{version:06d}.safetensors"


def write_tensors(path: Path, tensors: dict[str, NDArray[np.float32]], metadata: dict[str, str] | None = None) -> None:
    from safetensors.numpy import save

    write_durably(path, save(tensors, metadata=metadata))


def read_tensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """Raises: ConfigurationError where the file is missing"""
    from safetensors.numpy import load_file

    if not path.exists():
        raise ConfigurationError(f"{path} is missing although the journal points to it; restore it from a backup")
    return {name: np.asarray(tensor, dtype=np.float32) for name, tensor in load_file(path).items()}


_FILE: Final = "awaited.json"


class AwaitedSite(Frozen):
    """``why`` as far as the site says, or what to look at there."""

    site: str
    why: Shown


class Awaited(Frozen):
    """Those that are not ready; ``since_s``, since 1970, is when the study began to wait."""

    since_s: float
    sites: tuple[AwaitedSite, ...]

    @property
    def text(self) -> str:
        return f"since {minute(self.since_s)} waiting for {', '.join(f'{one.site} ({one.why})' for one in self.sites)}"


def minute(time_s: float) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime(time_s))} UTC"


def keep_awaited(journal: StudyJournal, awaited: Awaited | None) -> None:
    """None: the study waits no more."""
    path = journal.folder / _FILE
    if awaited is None:
        path.unlink(missing_ok=True)
    else:
        journal.write(path, awaited)


def read_awaited(journal: StudyJournal) -> Awaited | None:
    """None where the study waits for nobody. Raises: ConfigurationError"""
    return journal.read(journal.folder / _FILE, Awaited)


FINISH: Final = "finish.json"
SHARED_SCORES: Final = "shared_scores.json"
_FACTS: Final = "finished.json"
_VALUES: Final = "finished.safetensors"


class FinishedModel(Frozen):
    """The finish of the model ``shared_version``: ``pull``, None where it stayed as it is, chosen by ``choose``.

    ``seen`` and ``held`` count the training examples that the shared rounds had and had not. ``failed``: why there is
    no finished model.
    """

    choose: Literal["held_out", "leave_one_out"]
    shared_version: int
    pull: float | None = None
    seen: int = 0
    held: int = 0
    failed: str = ""

    @property
    def text(self) -> str:
        if self.failed:
            return f"no local finish: {self.failed}"
        by = f"{self.held} examples held out" if self.held else f"leaving each of {self.seen} examples out"
        if self.pull is None:
            return f"the local finish kept the shared model, by {by}"
        return f"local finish with pull {self.pull:.2g}, chosen by {by}"


def finish_table(journal: StudyJournal) -> FinishTable | None:
    """The study's [finish]; None where it has none, or this site is not its requester. Raises: ConfigurationError"""
    return journal.read(journal.folder / FINISH, FinishTable)


def finished_model(journal: StudyJournal) -> FinishedModel | None:
    return journal.read(journal.folder / _FACTS, FinishedModel)


def save_finished(journal: StudyJournal, facts: FinishedModel, vector: NDArray[np.float32] | None) -> None:
    """Values first, then the facts that say they are whole. Shapes: float32[D]"""
    if vector is not None:
        write_tensors(journal.folder / _VALUES, {MODEL: vector})
    journal.write(journal.folder / _FACTS, facts)


def load_finished(journal: StudyJournal) -> NDArray[np.float32]:
    """The finished model, float32[D]. Raises: ConfigurationError where it is missing"""
    return read_tensors(journal.folder / _VALUES)[MODEL]


class Kept(StrEnum):
    """The kept one of a study's models."""

    FEDERATED = "federated"
    BEST = "best"


class KeptModel(Frozen):
    """``version`` of the shared model, and its mean loss on the validation examples where that chose it."""

    version: int
    validation_loss: float | None = None


def kept_model(journal: StudyJournal, which: Kept) -> KeptModel | None:
    return journal.read(_facts(journal, which), KeptModel)


def save_kept(journal: StudyJournal, which: Kept, facts: KeptModel, model: NDArray[np.float32]) -> None:
    """Values first, then the facts. Shapes: float32[D]"""
    write_tensors(_values(journal, which, facts.version), {MODEL: model})
    journal.write(_facts(journal, which), facts)
    for path in journal.folder.glob(f"{which.value}-*.safetensors"):
        if path != _values(journal, which, facts.version):
            path.unlink()


def load_kept(journal: StudyJournal, which: Kept, facts: KeptModel) -> NDArray[np.float32]:
    """float32[D]. Raises: ConfigurationError where the file is missing"""
    return read_tensors(_values(journal, which, facts.version))[MODEL]


def _values(journal: StudyJournal, which: Kept, version: int) -> Path:
    return journal.folder / f"{which.value}-{version:06d}.safetensors"


def _facts(journal: StudyJournal, which: Kept) -> Path:
    return journal.folder / f"{which.value}.json"
