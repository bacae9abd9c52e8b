"""Runs: jobs carried out side by side, known by digest, their results kept as lines of JSON."""
