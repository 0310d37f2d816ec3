"""Finished runs in other programs' words: TensorBoard and MLflow, each an extra."""
