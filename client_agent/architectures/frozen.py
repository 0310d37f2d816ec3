"""Layers that no round trains: a pretrained network whose head, or whose adapters, a study fine-tunes.

Only what is trained is shared. The rest comes from a file that every site holds itself (setting ``weights`` names the
folder), or from the site's plug-in; its digest stands in the study, so all sites compute with the same layers. The
file is safetensors, which holds numbers and no code, by the names of the model's parameters and running statistics.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from client_agent.architectures.statistics import COUNTER, normalisations
from protocol.errors import ConfigurationError
from protocol.messages.model import FrozenSpec


def freeze(model: nn.Module, trainable: tuple[str, ...]) -> None:
    """Train only the parameters whose names begin so. Raises: ConfigurationError for a beginning of no name"""
    named = list(model.named_parameters(remove_duplicate=False))
    names = [name for name, _ in named]
    for beginning in trainable:
        if not any(_begins(name, beginning) for name in names):
            raise ConfigurationError(
                f"model.trainable: no layer's name begins with {beginning!r}; the model has {_tops(names)}"
            )
    trained = {id(one) for name, one in named if any(_begins(name, beginning) for beginning in trainable)}
    for _, parameter in named:
        parameter.requires_grad_(id(parameter) in trained)


def frozen_tensors(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Name and tensor of all that is not trained: parameters, then the running statistics of frozen layers."""
    found = [(name, parameter.data) for name, parameter in model.named_parameters() if not parameter.requires_grad]
    if not found:
        return []
    moving = {id(module) for _, module in normalisations(model)}
    for name, module in model.named_modules():
        if isinstance(module, _NormBase) and id(module) not in moving:
            buffers = module.named_buffers(prefix=name, recurse=False)
            found += [(full, buffer) for full, buffer in buffers if not full.endswith(COUNTER)]
    return found


def frozen_digest(model: nn.Module) -> str | None:
    """SHA-256 over names, shapes and little-endian float32 values of the frozen layers; None without any."""
    tensors = frozen_tensors(model)
    if not tensors:
        return None
    hashed = hashlib.sha256()
    for name, tensor in tensors:
        hashed.update(json.dumps([name, list(tensor.shape)]).encode() + b"\n")
        hashed.update(np.ascontiguousarray(tensor.cpu().numpy(), dtype="<f4").tobytes())
    return hashed.hexdigest()


def load_frozen(model: nn.Module, folder: Path | None, file: str) -> None:
    """Fill in the frozen layers from a site's file. Raises: ConfigurationError that says what is missing"""
    if folder is None:
        raise ConfigurationError(
            f"the study's frozen layers come from {file}: set key 'weights' to the folder that holds it"
        )
    found = _read(folder / file)
    with torch.no_grad():
        for name, tensor in frozen_tensors(model):
            if name not in found:
                raise ConfigurationError(f"{folder / file}: no values for the frozen layer {name!r}")
            value = found[name]
            if value.shape != tensor.shape or value.dtype != torch.float32:
                raise ConfigurationError(
                    f"{folder / file}: layer {name!r} is {value.dtype}{list(value.shape)}, expected "
                    f"torch.float32{list(tensor.shape)}"
                )
            tensor.copy_(value)


def require_frozen(model: nn.Module, pinned: FrozenSpec | None) -> None:
    """The frozen layers are those that the study pins. Raises: ConfigurationError"""
    found, wanted = frozen_digest(model), None if pinned is None else pinned.values_digest
    if found != wanted:
        raise ConfigurationError(
            f"the frozen layers here have digest {found or 'none'}, the study pins {wanted or 'none'}: every "
            "site needs the same values; get the requester's file"
        )


def _read(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigurationError(f"frozen layers {path} cannot be read: {error}") from None
    return tensors


def _begins(name: str, beginning: str) -> bool:
    return name == beginning or name.startswith(f"{beginning}.")


def _tops(names: list[str]) -> str:
    return ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))
