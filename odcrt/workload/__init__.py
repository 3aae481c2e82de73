"""What `odcrt launch` runs: a model, real or emulated, and the training loop."""
