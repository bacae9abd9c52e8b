"""Exact integer noise from system entropy: the only types that may leave, each with its guarantee."""
