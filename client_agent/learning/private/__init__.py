"""Training with noise: batches drawn record by record, gradients clipped one by one, integers with noise added."""
