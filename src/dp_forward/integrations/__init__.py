"""Engines that run parts of dp-forward on many machines; each has an extra of its own."""
