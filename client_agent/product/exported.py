"""An exported model, loaded again: every file is compared with the card's digests before anything is made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import nn

from client_agent.architectures.sources import ModelSources
from client_agent.data.kept import TRANSFORMATION_FILE
from client_agent.learning.foreign_code import model_code
from client_agent.product.card import CARD_FILE, ModelCard, file_digest
from client_agent.product.export import MODEL_FILE, STUDY_FILE
from client_agent.product.held import unfilled_network
from protocol.errors import ConfigurationError
from protocol.messages.control import Study
from protocol.text import printable

if TYPE_CHECKING:
    from client_agent.data.transformation import Transformation

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
    network = unfilled_network(study, plugin, sources)
    _fill(network, contents[MODEL_FILE], folder / MODEL_FILE)
    return Exported(card, study, network.eval(), _transformation(folder, card, study))


def _card(folder: Path) -> ModelCard:
    path = folder / CARD_FILE
    try:
        return ModelCard.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error}; name a folder of 'moiety model export'") from None
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {error.error_count()} fields are wrong: export again") from None


def _content(path: Path, digest: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error}; export again") from None
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
    """Raises: ConfigurationError when it is not the one that the model was exported with, or of another schema"""
    if study.data_schema is None:
        return None
    from client_agent.data.transformation import load_transformation

    found = load_transformation(folder / TRANSFORMATION_FILE)
    if found.digest != card.transformation_digest or found.table.digest() != study.data_schema.digest():
        raise ConfigurationError(
            f"{folder / TRANSFORMATION_FILE} is not the transformation that the model was exported with: export again"
        )
    return found
