"""Seeded noise in torch for training and experiments; plain tensors, which nothing puts on a wire."""
