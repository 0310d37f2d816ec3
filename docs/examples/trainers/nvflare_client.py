"""A script of NVFlare's Client API that trains logistic regression with numpy: the [trainer] of docs/adapters.md."""

from pathlib import Path

import numpy as np
import nvflare.client as flare


def train(params, X, y, epochs, rate):
    """Gradient steps on all of the site's examples; ``params`` are the study's layers by name, weight before bias."""
    (weight_name, weight), (bias_name, bias) = params.items()
    for _ in range(epochs):
        scores = X @ weight.T + bias
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        wrong = scores / scores.sum(axis=1, keepdims=True)
        wrong[np.arange(len(y)), y] -= 1
        step = np.float32(rate / len(y))
        weight = weight - step * (wrong.T @ X)
        bias = bias - step * wrong.sum(axis=0)
    return {weight_name: weight, bias_name: bias}


def main():
    flare.init()
    config = flare.get_config()
    with np.load(Path(config["data"]) / "train.npz") as file:
        X, y = file["X"].astype(np.float32), file["y"]
    while flare.is_running():
        model = flare.receive()
        if model is None:
            break
        trained = train(model.params, X, y, config["epochs"], config["local_learning_rate"])
        flare.send(flare.FLModel(params=trained, meta={"NUM_STEPS_CURRENT_ROUND": config["epochs"]}))


if __name__ == "__main__":
    main()
