"""Noisy masked-LM pre-training on public text."""
