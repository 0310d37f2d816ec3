"""Federated logistic regression as a person writes it in PyTorch: the same batches, steps, average and evaluation."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from client_agent.learning.trainer import epoch_rows
from client_agent.learning.training_seeds import site_seed
from harness.datasets.site_data import SiteData
from protocol.wire.messages import Study


def train_by_hand(study: Study, sites: Sequence[SiteData], shared: nn.Module) -> list[tuple[float, float]]:
    """All rounds; ``shared`` holds the model. Returns test accuracy and loss at the first site, a pair per round."""
    data = [(torch.from_numpy(site.train.X), torch.from_numpy(site.train.y)) for site in sites]
    test_X, test_y = torch.from_numpy(sites[0].test.X), torch.from_numpy(sites[0].test.y)
    found = []
    for number in range(1, study.rounds + 1):
        states = []
        for site, (X, y) in zip(sites, data, strict=True):
            model = copy.deepcopy(shared)
            optimiser = torch.optim.SGD(model.parameters(), lr=study.training.local_learning_rate)
            for rows in epoch_rows(len(y), study.training, number, site_seed(study.seed or 0, site.name)):
                batch = torch.from_numpy(rows)
                optimiser.zero_grad()
                loss = nn.functional.cross_entropy(model(X[batch]), y[batch])
                loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
                optimiser.step()
            states.append(model.state_dict())
        shared.load_state_dict({name: sum(state[name] for state in states) / len(states) for name in states[0]})
        with torch.no_grad():
            logits = shared(test_X)
            accuracy = (logits.argmax(dim=1) == test_y).float().mean()
            found.append((float(accuracy), float(nn.functional.cross_entropy(logits, test_y))))
    return found
