"""Benchmarks: `make bench` is `python -m benchmarks`, with limits; the other modules are long runs."""
