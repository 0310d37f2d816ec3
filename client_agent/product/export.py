"""A study's model as a folder that stands by itself.

model.safetensors     the network's whole state_dict; torch and safetensors alone load it
card.json, card.md    the model card
study.json            the study, from which the network is made again
transformation.json   from a table's row to the model's input, where the study has a schema
model.pt2             the network as torch.export has it, if asked for: it runs without Moiety
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import nn

from client_agent.data.kept import TRANSFORMATION_FILE, require_made_by_schema
from client_agent.learning.foreign_code import words_of
from client_agent.product.baseline import fit_baseline
from client_agent.product.card import CARD_FILE, ModelCard, card_of, file_digest
from client_agent.product.card_text import card_markdown
from client_agent.product.held import HeldModel
from host.output_files import filling
from protocol.errors import ConfigurationError

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
        from client_agent.data.transformation import load_transformation

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
