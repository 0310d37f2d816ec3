"""The gradient of every example's own loss, for models of classes without batch norm or dropout."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, grad, vmap

from client_agent.learning.personal import shared_parameters
from client_agent.tasks.losses import Batch


def sample_gradients(model: nn.Module, batch: Batch) -> NDArray[np.float64]:
    """Return gradients of the log-loss, without penalties, at the model as it is, in the order of the flat vector.

    Shapes:   n examples -> float64[n, D]
    """
    shared = {name: parameter.detach() for name, parameter in shared_parameters(model)}

    def one(parameters: dict[str, torch.Tensor], X: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        answers = functional_call(model, parameters, (X.unsqueeze(0),))
        return nn.functional.cross_entropy(answers, y.unsqueeze(0))

    found = vmap(grad(one), in_dims=(None, 0, 0))(shared, batch.X, batch.y)
    return np.concatenate([found[name].flatten(1).cpu().numpy().astype(np.float64) for name in shared], axis=1)
