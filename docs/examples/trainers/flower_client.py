"""A Flower ClientApp that trains logistic regression with numpy: the [trainer] of docs/adapters.md.

The same file runs under a SuperNode: nothing in it is Moiety's.
"""

from pathlib import Path

import numpy as np
from flwr.client import ClientApp, NumPyClient


class Regression(NumPyClient):
    """Gradient steps on all of the site's examples."""

    def __init__(self, data):
        with np.load(Path(data) / "train.npz") as file:
            self.X, self.y = file["X"].astype(np.float32), file["y"]

    def fit(self, parameters, config):
        weight, bias = parameters
        for _ in range(int(config["epochs"])):
            scores = self.X @ weight.T + bias
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            wrong = scores / scores.sum(axis=1, keepdims=True)
            wrong[np.arange(len(self.y)), self.y] -= 1
            rate = np.float32(config["local-learning-rate"] / len(self.y))
            weight = weight - rate * (wrong.T @ self.X)
            bias = bias - rate * wrong.sum(axis=0)
        return [weight, bias], len(self.y), {}


def client_fn(context):
    return Regression(context.node_config["data"]).to_client()


app = ClientApp(client_fn=client_fn)
