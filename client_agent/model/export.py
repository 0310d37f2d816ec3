"""A study's model as a folder that stands by itself, written and loaded again.

model.safetensors     the network's whole state_dict; torch and safetensors alone load it
card.json, card.md    the model card
study.json            the study, from which the network is made again
transformation.json   from a table's row to the model's input, where the study has a schema
model.pt2             the network as torch.export has it, if asked for: it runs without Moiety

The baseline hazard turns a log hazard into the probability of having no event until a horizon. It is Breslow's estimate
on the training rows of the site that exports, no other site's. The whole curve has a step at every patient's event, so
it lists event times; what leaves the site with the model is its value at a few horizons that the exporting person
names, with a least number of events between any two.

Source: Breslow 1974, Covariance analysis of censored survival data
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import nn

from client_agent.data.transformation import Transformation, load_transformation
from client_agent.learning.data import EVENT, TIME, TRANSFORMATION_FILE, require_made_by_schema
from client_agent.learning.evaluation import evaluate
from client_agent.learning.foreign_code import model_code, words_of
from client_agent.learning.losses import task_loss
from client_agent.learning.metrics import Predicted, log_baseline_hazard
from client_agent.learning.models import network_of
from client_agent.learning.plugin import fitting_data, study_model, study_plugin
from client_agent.learning.settings import ModelSources
from client_agent.model.card import CARD_FILE, LEAST_EVENTS, Horizon, ModelCard, card_markdown, card_of, file_digest
from client_agent.model.site_model import HeldModel
from host.files import why_unreadable
from host.output_files import filling
from protocol.errors import ConfigurationError
from protocol.messages.control import Study, TaskKind
from protocol.text import printable

MODEL_FILE: Final = "model.safetensors"
STUDY_FILE: Final = "study.json"
PROGRAM_FILE: Final = "model.pt2"
CARD_TEXT: Final = "card.md"


def export(
    held: HeldModel,
    data: Path,
    out: Path,
    *,
    is_requester: bool,
    program: bool = False,
    plugin: Path | None = None,
    horizons: Sequence[float] = (),
) -> ModelCard:
    """Write the folder; ``data`` is the site's own, ``program`` asks for model.pt2, ``horizons`` for survival at them.

    Raises: ConfigurationError when the folder holds something, the site's data were made by another schema, or do not
            carry the horizons
    """
    files = {MODEL_FILE: _tensors(held), STUDY_FILE: held.study.canonical()}
    transformation = None
    if held.study.data_schema is not None:
        require_made_by_schema(held.study, data)
        files[TRANSFORMATION_FILE] = (data / TRANSFORMATION_FILE).read_bytes()
        transformation = load_transformation(data / TRANSFORMATION_FILE).digest
    if program:
        files[PROGRAM_FILE] = _program(held.network, held.study.model.inputs)
    baseline = fit_baseline(held, data, plugin, horizons)
    digests = {name: file_digest(content) for name, content in files.items()}
    card = card_of(
        held, is_requester=is_requester, transformation_digest=transformation, files=digests, baseline=baseline
    )
    files |= {CARD_FILE: (card.model_dump_json(indent=1) + "\n").encode(), CARD_TEXT: card_markdown(card).encode()}
    with filling(out, CARD_FILE) as new:
        for name, content in files.items():
            (new / name).write_bytes(content)
    return card


def digest_in(card: ModelCard) -> str:
    """SHA-256 of the values, as the card names it."""
    return next(one.value for one in card.files if one.name == MODEL_FILE)


def _tensors(held: HeldModel) -> bytes:
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in held.network.state_dict().items()}
    finished = "" if held.finish is None else ", finished by its requester"
    made: bytes = save(tensors, metadata={"moiety": f"study {held.study.digest()}, model {held.version}{finished}"})
    return made


def _program(network: nn.Module, inputs: tuple[int, ...]) -> bytes:
    """Any number of examples at a time. Raises: ConfigurationError for a network that torch cannot trace"""
    batch = torch.export.Dim("batch", min=1)
    into = io.BytesIO()
    try:
        made = torch.export.export(network, (torch.zeros(2, *inputs),), dynamic_shapes=({0: batch},))
        torch.export.save(made, into)
    except Exception as error:  # whatever tracing finds
        raise ConfigurationError(f"torch.export cannot trace this network: {words_of(error)}") from None
    return into.getvalue()


def fit_baseline(held: HeldModel, data: Path, plugin: Path | None, times: Sequence[float]) -> tuple[Horizon, ...]:
    """The baseline of a model at these horizons, from the site's own training rows; nothing for no horizon.

    Raises: ConfigurationError for a task without survival, and horizons that rest on too few events
    """
    if not times:
        return ()
    if held.study.task.kind is not TaskKind.SURVIVAL:
        raise ConfigurationError(f"--horizon: study {held.study.name!r} predicts no survival; leave it out")
    horizons = sorted(set(times))
    if not all(math.isfinite(time) and time > 0 for time in horizons):
        raise ConfigurationError("--horizon: give times above 0, in the unit of the study's times")
    train = fitting_data(held.study, data, study_plugin(held.study, plugin)).train
    until = np.array(horizons, np.float32)  # as the times are kept, so that an event at a horizon counts
    _require_events(train.y, until)
    outputs = evaluate(held.network, train, torch.device("cpu"), task_loss(held.study.task)).outputs
    assert outputs is not None  # a survival model gives [n, 1], or the study was refused
    found = log_baseline_hazard(Predicted(held.study.task, outputs, train.y), until.astype(np.float64))
    if not np.isfinite(found).all():
        raise ConfigurationError(f"--horizon: the model of study {held.study.name!r} has diverged: leave it out")
    return tuple(Horizon(time=time, log_hazard=float(one)) for time, one in zip(horizons, found, strict=True))


def _require_events(y: NDArray[np.float32], until: NDArray[np.float32]) -> None:
    if until[-1] > y[:, TIME].max():
        raise ConfigurationError(f"--horizon {until[-1]:g}: this site followed no training patient that long")
    counts = np.array([np.sum((y[:, EVENT] > 0) & (y[:, TIME] <= time)) for time in until])
    few = np.flatnonzero(np.diff(counts, prepend=0) < LEAST_EVENTS)
    if len(few):
        since = f"between {until[few[0] - 1]:g} and {until[few[0]]:g}" if few[0] else f"up to {until[0]:g}"
        raise ConfigurationError(
            f"--horizon {until[few[0]]:g}: fewer than {LEAST_EVENTS} training patients of this site have their event "
            f"{since}, and the step would show single patients: name fewer or later horizons"
        )


BATCH = 1024


@dataclass(frozen=True, eq=False)
class Exported:
    """A model that predicts; ``transformation`` is what tables of rows go through, None without a schema."""

    card: ModelCard
    study: Study
    network: nn.Module = field(repr=False)
    transformation: Transformation | None = None

    def outputs(self, X: NDArray[np.float32]) -> NDArray[np.float32]:
        """The network's outputs. Shapes: float32[n, ...] -> float32[n, K]. Raises: ConfigurationError"""
        if X.dtype != np.float32 or X.shape[1:] != self.study.model.inputs or not np.isfinite(X).all():
            raise ConfigurationError(
                f"the model takes float32[n, {', '.join(map(str, self.study.model.inputs))}], all finite, found "
                f"{X.dtype}{list(X.shape)}"
            )
        width = self.study.model.classes
        if not len(X):
            return np.zeros((0, width), np.float32)
        with torch.no_grad(), model_code(self.network, "the forward pass"):
            parts = [self.network(torch.from_numpy(X[at : at + BATCH])).numpy() for at in range(0, len(X), BATCH)]
            found: NDArray[np.float32] = np.concatenate(parts)
        if found.shape != (len(X), width):
            raise ConfigurationError(f"for {len(X)} rows the model gives {list(found.shape)}, not {[len(X), width]}")
        if not np.isfinite(found).all():
            raise ConfigurationError("the model's outputs are no numbers for some rows: it has diverged, or those rows")
        return found


def load_exported(folder: Path, plugin: Path | None, sources: ModelSources) -> Exported:
    """``plugin`` and ``sources`` are for models that are not built in.

    Raises: ConfigurationError for a file that is missing, or is not the one that was exported
    """
    card = _card(folder)
    contents = {one.name: _content(folder / one.name, one.value) for one in card.files}
    if not {MODEL_FILE, STUDY_FILE} <= set(contents):
        raise ConfigurationError(f"{folder / CARD_FILE} names no {MODEL_FILE} and {STUDY_FILE}: export again")
    study = Study.parse(contents[STUDY_FILE])
    if study.digest() != card.study_digest:
        raise ConfigurationError(f"{folder / STUDY_FILE} is not the study of {CARD_FILE}: export again")
    given = study_plugin(study, plugin)
    if given is None:  # frozen layers come with the model: no file of theirs is asked for
        network = network_of(study.model.model_copy(update={"frozen": None}), sources)
    else:
        network = study_model(study, given)
    _fill(network, contents[MODEL_FILE], folder / MODEL_FILE)
    return Exported(card, study, network.eval(), _transformation(folder, card, study))


def _card(folder: Path) -> ModelCard:
    path = folder / CARD_FILE
    try:
        return ModelCard.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigurationError(f"{folder} holds no {CARD_FILE}: name a folder of 'moiety model export'") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {why_unreadable(path, error)}") from None
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {error.error_count()} fields are wrong: export again") from None


def _content(path: Path, digest: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read, so export again: {why_unreadable(path, error)}") from None
    if file_digest(content) != digest:
        raise ConfigurationError(f"{path} is not the file that was exported, as its digest says: export again")
    return content


def _fill(network: nn.Module, content: bytes, path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        network.load_state_dict(load(content))
    except (SafetensorError, RuntimeError) as error:
        raise ConfigurationError(f"{path} does not fit the study's network: {printable(str(error), 500)}") from None


def _transformation(folder: Path, card: ModelCard, study: Study) -> Transformation | None:
    if study.data_schema is None:
        return None
    found = load_transformation(folder / TRANSFORMATION_FILE)
    if found.digest != card.transformation_digest or found.table.digest() != study.data_schema.digest():
        raise ConfigurationError(
            f"{folder / TRANSFORMATION_FILE} is not the transformation that the model was exported with: export again"
        )
    return found
